# Sourced by the other scripts.
#   set_up EXTRA      makes .venv in the project root with everything the extra needs, at the pinned versions and with
#                     the pinned hashes; returns at once if nothing has changed since the last call
#   install_programs  installs the system packages that the tests need and the machine lacks, after saying which
#   require_programs  stops with the names of these packages instead

# The tests start many processes. Without cached bytecode, each of them compiles the package and its type checks anew,
# which doubles the time of a test run.
unset PYTHONDONTWRITEBYTECODE

APT_INSTALL="apt-get install --no-install-recommends"

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
    key=$(cat pyproject.toml constraints.txt requirements/*.txt scripts/setup.sh | cksum; pwd)
    if [ "$(cat "$stamp" 2>/dev/null)" = "$key" ]; then
        return
    fi
    python=$(find_python)
    if ! .venv/bin/python -c 'import pip' 2>/dev/null; then
        echo "Setting up .venv with $("$python" --version) …" >&2
        "$python" -m venv --clear .venv
    fi
    echo "Installing the packages of requirements/$extra.txt into .venv (once; a few minutes) …" >&2
    install_packages "$extra"
    # The package itself, without dependencies, because pip's hash check refuses editable packages. The compat mode is
    # a plain entry on the path: the package is found from every directory.
    in_venv_pip install --no-deps --no-build-isolation --config-settings editable_mode=compat --editable .
    echo "$key" >"$stamp"
}

in_venv_pip() {
    .venv/bin/python -m pip --quiet --disable-pip-version-check "$@"
}

# Installs the packages of an extra and checks the hash of each. The lists are complete, so dependencies are not looked
# up.
install_packages() {
    # Tools for building first: what comes as source is built with them, not with others that pip would fetch.
    install_hashed build
    install_hashed "$1"
    install_torch
}

install_hashed() {
    in_venv_pip install --require-hashes --no-deps --no-build-isolation -r "requirements/$1.txt"
}

# Installs the CPU build of torch. Its hash is known for one platform. On another one, it is installed without the check.
# Where pip is not offered this build, it takes the default build, whose hashes are known, but whose dependencies are not
# pinned.
install_torch() {
    local log
    log=$(mktemp)
    if install_hashed torch 2>"$log"; then
        rm "$log"
        return
    fi
    if grep -q 'No matching distribution found for torch' "$log"; then
        rm "$log"
        echo "pip is not offered the CPU build of torch; installing the default build with its hash checked, but not those of the packages that only this build needs …" >&2
        install_hashed torch-default
        in_venv_pip install -c constraints.txt torch
        return
    fi
    if grep -q 'DO NOT MATCH THE HASHES' "$log" && ! on_locked_platform; then
        rm "$log"
        echo "The hash of the CPU build of torch is known for Python 3.11 on Linux with x86-64 only; installing it without checking its hash …" >&2
        in_venv_pip install -c constraints.txt torch
        return
    fi
    cat "$log" >&2
    rm "$log"
    return 1
}

# Whether requirements/torch.txt has the hash for this Python and this machine.
on_locked_platform() {
    .venv/bin/python -c 'import platform, sys; sys.exit((*sys.version_info[:2], sys.platform, platform.machine()) != (3, 11, "linux", "x86_64"))'
}

# The Debian packages of those programs that the tests need and that are not on the path. The compiled kernels and
# the pages are tested too, so no test is skipped because a compiler or a browser is missing.
missing_packages() {
    local compiler="${CXX:-c++}" missing=()
    command -v "${compiler%% *}" >/dev/null || missing+=(g++)
    command -v chromium >/dev/null || missing+=(chromium)
    command -v chromedriver >/dev/null || missing+=(chromium-driver)
    echo ${missing[@]+"${missing[@]}"}
}

require_programs() {
    local missing
    missing=$(missing_packages)
    if [ -n "$missing" ]; then
        echo "scripts/test: the tests need programs that are missing; run \`$APT_INSTALL $missing\`, or leave out --no-install" >&2
        exit 2
    fi
}

install_programs() {
    local missing
    missing=$(missing_packages)
    if [ -z "$missing" ]; then
        return
    fi
    echo "scripts/test: about to install with apt-get: $missing" >&2
    # Unquoted: one argument per word.
    if ! apt-get update -qq || ! DEBIAN_FRONTEND=noninteractive $APT_INSTALL -y -qq $missing; then
        echo "scripts/test: apt-get could not install the packages; run \`$APT_INSTALL $missing\` as root, or install these programs in another way" >&2
        exit 1
    fi
    missing=$(missing_packages)
    if [ -n "$missing" ]; then
        echo "scripts/test: still missing after the installation: $missing; check PATH and CXX" >&2
        exit 1
    fi
}
