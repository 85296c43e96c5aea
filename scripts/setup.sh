# Sourced by the other scripts: `set_up EXTRA` makes .venv in the project root with everything the extra
# needs, at the pinned versions. A second call with nothing changed returns at once.

find_python() {
    for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python; do
        [ -n "$candidate" ] && command -v "$candidate" >/dev/null || continue
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "mtdinterp needs Python 3.11 or newer; set PYTHON=/path/to/python" >&2
    return 1
}

set_up() {
    local extra="$1" stamp=".venv/.set-up-$1" key python
    key=$(cat pyproject.toml constraints.txt scripts/setup.sh | cksum; pwd)
    if [ "$(cat "$stamp" 2>/dev/null)" = "$key" ]; then
        return
    fi
    python=$(find_python)
    if ! .venv/bin/python -c 'import pip' 2>/dev/null; then
        echo "Setting up .venv with $("$python" --version) …" >&2
        "$python" -m venv --clear .venv
    fi
    echo "Installing the pinned packages (once; a few minutes) …" >&2
    # The compat mode is a plain entry on the path: the package is found from every directory. The build's own
    # environment takes its versions from the constraints too.
    PIP_CONSTRAINT=constraints.txt .venv/bin/python -m pip install --quiet --disable-pip-version-check \
        --config-settings editable_mode=compat --editable ".${extra:+[$extra]}"
    echo "$key" >"$stamp"
}
