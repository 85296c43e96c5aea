"""`mtdinterp app`: the workbench, a local page to look at a model's run and change it."""

import argparse
import logging
import os
import sys
import threading
from importlib.util import find_spec

from mtdinterp.app.listen import ADDRESS, listen
from mtdinterp.commands.flags import at_least, not_empty
from mtdinterp.commands.progress import stages

NEEDED = ("fastapi", "uvicorn", "plotly")
SHUTDOWN_SECONDS = 5
"""How long a stopped server waits for requests under way, even one that was sent only in part."""
IDLE_SECONDS = 0.5
"""How long a thread of the stopped server that computes nothing may take to end."""
INTERRUPTED = 130
"""The exit code after Ctrl+C."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command."""
    parser.epilog = (
        "examples:\n  mtdinterp app\n  mtdinterp app out/m4 out/paper --port 8800\n"
        "  mtdinterp app --no-browser"
    )
    parser.add_argument(
        "checkpoints",
        nargs="*",
        type=not_empty,
        metavar="CHECKPOINT",
        help="checkpoint directories to list next to the zoo models; no others can be opened",
    )
    parser.add_argument(
        "--port",
        type=at_least(0),
        default=8765,
        metavar="N",
        help="local port (default: 8765); 0 picks any free port",
    )
    parser.add_argument(
        "--no-browser", action="store_true", help="do not open the page in a browser"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serve the workbench until it is interrupted; returns the exit code."""
    from mtdinterp.checkpoint_files import find_checkpoint, read_config

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ValueError(
            f"the workbench needs {', '.join(missing)}; in a clone of the repository, run pip "
            "install -c constraints.txt -e '.[app]'"
        )
    if options.port > 65535:
        raise ValueError(f"--port: expected a port in 0..65535, got {options.port}")
    for name in options.checkpoints:
        read_config(find_checkpoint(name))  # before anything heavy is imported
    with listen(options.port) as listener:
        with stages(1) as stage:
            stage("importing")
            import uvicorn

            from mtdinterp.app.models import Registry
            from mtdinterp.app.server import create_app

            port = listener.getsockname()[1]
            registry = Registry(options.checkpoints)
            server = uvicorn.Server(
                uvicorn.Config(
                    create_app(registry, port),
                    log_level="warning",
                    server_header=False,
                    timeout_graceful_shutdown=SHUTDOWN_SECONDS,
                )
            )
        for sentence in registry.left_out:
            print(f"mtdinterp app: skipped {sentence}", file=sys.stderr)
        url = f"http://{ADDRESS}:{port}/"
        print(f"workbench: {url}  (press Ctrl+C to stop)", flush=True)
        if not options.no_browser:
            import webbrowser

            webbrowser.open(url)
        # A stopped server logs a traceback for each request that it gives up.
        logging.getLogger("uvicorn.error").addFilter(lambda record: not server.should_exit)
        try:
            server.run(sockets=[listener])
        except KeyboardInterrupt:
            if not _is_computing():
                raise
            print("mtdinterp app: interrupted; an answer was still being computed", file=sys.stderr)
            sys.stdout.flush()
            sys.stderr.flush()
            # Python would wait for the threads that compute, which cannot be stopped.
            os._exit(INTERRUPTED)
    return 0


def _is_computing() -> bool:
    """Whether the end of the process would wait for a thread of the stopped server."""
    main = threading.main_thread()
    waited_for = [thread for thread in threading.enumerate() if not thread.daemon]
    others = [thread for thread in waited_for if thread is not main]
    for thread in others:
        thread.join(IDLE_SECONDS)
    return any(thread.is_alive() for thread in others)
