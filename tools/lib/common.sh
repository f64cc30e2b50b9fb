# shellcheck shell=bash
# Shared by tools/quickstart and tools/test, which source it after `set -euo pipefail`.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck disable=SC2034
build=$root/build/release
logs=$root/build/logs
terminal=false
[[ -t 1 ]] && terminal=true

# What a build and the tests need, as Debian 12 names it.
packages=(g++ cmake ninja-build ccache pkg-config libcaf-dev libtorch-dev libopenblas0 libucx-dev ucx-utils libboost-dev
          nlohmann-json3-dev catch2 libpcre2-dev libutf8proc-dev libcli11-dev libspdlog-dev libfmt-dev libxxhash-dev)

say() { printf '%s\n' "$*"; }
die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# took SECONDS_AT_START: how long a part took, for the end of its line.
took() { printf '%d s' $((SECONDS - $1)); }

# Fails with the end of a log and its name.
die_with_log() {
  local log=$1
  shift
  printf '%s\n' "---- the last 40 lines of $log" >&2
  tail -n 40 "$log" >&2
  printf '%s\n' ---- >&2
  die "$*; the whole log: $log"
}

# One compiler for each processor, as far as there are 2 GB of memory for each.
default_jobs() {
  local jobs memory_kb limit
  jobs=$(nproc)
  memory_kb=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo 2>/dev/null || true)
  limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || true)
  if [[ $limit =~ ^[0-9]+$ ]] && ((limit / 1024 < ${memory_kb:-0})); then memory_kb=$((limit / 1024)); fi
  if [[ -n $memory_kb ]] && ((memory_kb / 2097152 < jobs)); then jobs=$((memory_kb / 2097152)); fi
  ((jobs >= 1)) || jobs=1
  printf '%d' "$jobs"
}

check_jobs() { [[ $1 =~ ^[1-9][0-9]*$ ]] || die "--jobs takes a number of at least 1, not '$1'"; }

# Copies its input to a log, and shows what a build tells of its progress ("[12/140] ..."): in place on a terminal, as a
# line every 30 seconds elsewhere.
show_progress() {
  local log=$1 start=$SECONDS shown=$SECONDS line
  while IFS= read -r line || [[ -n $line ]]; do
    printf '%s\n' "$line"
    [[ $line =~ ^\[([0-9]+)/([0-9]+)\] ]] || continue
    if $terminal; then
      printf '\r  %d of %d, %s ' "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" "$(took "$start")" >&3
    elif ((SECONDS - shown >= 30)); then
      shown=$SECONDS
      printf '  %d of %d, %s\n' "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" "$(took "$start")" >&3
    fi
  done 3>&1 >"$log"
  if $terminal; then printf '\r\033[K'; fi
}

missing_packages() {
  local package
  for package in "${packages[@]}"; do
    [[ $(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true) == 'install ok installed' ]] || printf '%s\n' "$package"
  done
}

# Installs the packages that are missing; asks nothing of apt when none is.
install_packages() {
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    say "This is no Debian-like system: install the libraries yourself, then build with \`cmake --preset release\` and"
    say "\`cmake --build --preset release\`. As Debian 12 names them:"
    printf '  %s\n' "${packages[@]}"
    exit 1
  fi
  local missing as_root=() start=$SECONDS log=$logs/apt.log
  mapfile -t missing < <(missing_packages)
  if ((${#missing[@]} == 0)); then
    say "packages: all ${#packages[@]} are installed"
    return
  fi
  if (($(id -u) != 0)); then
    # Without a terminal sudo must not ask for a password.
    if ! command -v sudo >/dev/null || { ! $terminal && ! sudo -n true 2>/dev/null; }; then
      say "Packages are missing, and this user can't install them. Let somebody who can run"
      say "  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
      exit 1
    fi
    as_root=(sudo)
  fi
  say "packages: installing ${missing[*]}"
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300)
  "${apt[@]}" update >"$log" 2>&1 </dev/null || die_with_log "$log" "apt-get update failed"
  "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >>"$log" 2>&1 </dev/null ||
    die_with_log "$log" "apt-get install failed"
  say "packages: installed, $(took "$start")"
}

# Configures and builds everything.
build_all() {
  local jobs=$1 start=$SECONDS
  cmake --preset release >"$logs/configure.log" 2>&1 || die_with_log "$logs/configure.log" "configuring failed"
  say "configure: $(took "$start")"
  start=$SECONDS
  say "build: up to $jobs at a time, log in $logs/build.log"
  cmake --build --preset release --parallel "$jobs" 2>&1 | show_progress "$logs/build.log" ||
    die_with_log "$logs/build.log" "the build failed"
  say "build: $(took "$start")"
}

# Packages, configuration, build: what every tool begins with. Leaves the shell in the root of the tree.
prepare() {
  local jobs=$1
  cd "$root" || exit
  mkdir -p "$logs"
  install_packages
  build_all "$jobs"
}
