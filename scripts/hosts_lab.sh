#!/usr/bin/env bash
# Several hosts on one Linux machine, to try or test training over SSH.
#
# Each host has its own network interface with an IPv4 and an IPv6 address, SSH server, process IDs, host name, /tmp,
# /dev/shm and working directory. A bridge connects the hosts. The interfaces, the bridge and the processes are in
# their own namespaces, so the network of the machine does not change. Everything else is shared: CPU cores, memory,
# and all other files, such as the Python environment.
#
# Needs root, and the programs bash, ip, mount, nsenter, ssh-keygen, sshd and unshare
# (Debian: bash, iproute2, mount, openssh-server, util-linux).
set -euo pipefail

usage() {
  cat <<'EOF'
Usage: hosts_lab.sh COMMAND

  up N                       make N hosts, named a, b, c, ...; at most 9
  exec HOST COMMAND ...      run a command on a host, in the current directory and environment
  link HOST down|up|silent   unplug the cable of a host, plug it in, or drop everything that is sent over it
  kill HOST                  switch a host off, as by a power failure
  start HOST                 switch it on again; its files are kept, and its cable is plugged in
  status                     print each host, its addresses, interface and state
  path                       print the directory of the hosts
  check                      exit with 77, and print why, if hosts cannot be made here
  down                       end all processes of the hosts, and remove their files

Names: host b has the names b (IPv4 and IPv6), b4 (IPv4 only) and b6 (IPv6 only), on all hosts.
Files in the directory of the hosts, $HOSTS_LAB or /var/tmp/hosts_lab:
  ssh_config   for ssh -F, and for --ssh-config of train; names the key and the known hosts
  work         a directory that exists on all hosts, with different content on each
  b/work, b/tmp, b/sshd.log   on host b: content of work and of /tmp, and the log of its SSH server

Example:
  sudo scripts/hosts_lab.sh up 2
  cd "$(scripts/hosts_lab.sh path)/work"
  sudo hosts_lab.sh exec a train cartpole-balance --cpu-ranks 1 --hosts a b --ssh-config ../ssh_config
  sudo hosts_lab.sh down
EOF
}

LAB=${HOSTS_LAB:-/var/tmp/hosts_lab}
NAMES=(a b c d e f g h i)

fail() {
  echo "hosts_lab.sh: $1" >&2
  exit "${2:-1}"
}

# Exit with 77 if hosts cannot be made here.
check() {
  local program
  for program in ip mount nsenter ssh-keygen sshd unshare; do
    PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null ||
      fail "needs the program $program; install iproute2, mount, openssh-server and util-linux" 77
  done
  [ "$(id -u)" = 0 ] || fail "needs root, to make network namespaces; use sudo" 77
  unshare --net --mount --pid --fork --uts --ipc true 2>/dev/null ||
    fail "namespaces are refused here; in a container, allow CAP_SYS_ADMIN (docker run --privileged)" 77
  unshare --net ip link add lab_test type bridge 2>/dev/null ||
    fail "network bridges are refused here; in a container, allow CAP_NET_ADMIN (docker run --privileged)" 77
  unshare --net ip link add lab_test type veth peer name lab_peer 2>/dev/null ||
    fail "the kernel has no virtual Ethernet devices (module veth)" 77
}

# Fail if there is no such host.
require_host() {
  if [ -z "$1" ] || [ ! -d "$LAB/$1/work" ]; then fail "there is no host '$1'; run: hosts_lab.sh up 2"; fi
}

is_on() {
  [ -s "$LAB/$1/pid" ] && [ -d "/proc/$(<"$LAB/$1/pid")" ]
}

require_on() {
  require_host "$1"
  is_on "$1" || fail "host $1 is off; run: hosts_lab.sh start $1"
}

# Run a command in the namespace with the bridge.
at_switch() {
  nsenter --target "$(<"$LAB/switch.pid")" --net "$@"
}

# Number of a host, from 1: the last part of its addresses.
number_of() {
  local i
  for i in "${!NAMES[@]}"; do
    [ "${NAMES[i]}" != "$1" ] || echo $((i + 1))
  done
}

wait_until() { # what, command
  local what=$1 i
  shift
  for i in {1..100}; do
    if "$@" 2>/dev/null; then return; fi
    sleep 0.1
  done
  fail "$what did not start: see the files in $LAB, then run: hosts_lab.sh down"
}

up() {
  local count=$1 host
  [[ $count =~ ^[1-9]$ ]] || fail "up $count: give a number of hosts from 1 to ${#NAMES[@]}"
  [[ $LAB == /* && $LAB != /tmp/* ]] || fail "HOSTS_LAB $LAB: must be absolute, and not in /tmp, because each host has its own /tmp"
  [ ! -e "$LAB" ] || fail "$LAB exists; run: hosts_lab.sh down"
  check

  # Keys and names
  mkdir -p "$LAB"
  ssh-keygen -q -t ed25519 -N '' -C hosts_lab -f "$LAB/key"
  echo '127.0.0.1 localhost' >"$LAB/hosts"
  echo '::1 localhost' >>"$LAB/hosts"
  for host in "${NAMES[@]:0:count}"; do
    mkdir -p "$LAB/$host/work" "$LAB/$host/tmp"
    chmod 1777 "$LAB/$host/tmp"
    ssh-keygen -q -t ed25519 -N '' -C "$host" -f "$LAB/$host/host_key"
    local v4 v6
    v4=192.0.2.$(number_of "$host") v6=fd00::$(number_of "$host")
    printf '%s\n' "$v4 $host ${host}4" "$v6 $host ${host}6" >>"$LAB/hosts"
    echo "$host,${host}4,${host}6,$v4,$v6 $(cut -d' ' -f1,2 "$LAB/$host/host_key.pub")" >>"$LAB/known_hosts"
  done
  mkdir "$LAB/work"
  cat >"$LAB/ssh_config" <<EOF
Host *
  User root
  IdentityFile $LAB/key
  UserKnownHostsFile $LAB/known_hosts
EOF

  # Bridge, in a namespace that lives as long as its process
  setsid unshare --net sleep infinity </dev/null >/dev/null 2>&1 &
  echo $! >"$LAB/switch.pid"
  wait_until "the namespace of the bridge" is_other_network "$(<"$LAB/switch.pid")"
  at_switch ip link add switch type bridge
  at_switch ip link set switch up

  for host in "${NAMES[@]:0:count}"; do
    boot "$host"
  done
}

is_other_network() {
  [ "$(readlink "/proc/$1/ns/net")" != "$(readlink /proc/self/ns/net)" ]
}

# Start the first process of a host, and connect its cable.
boot() {
  local host=$1 v4 v6 pid
  rm -f "$LAB/$host/pid" "$LAB/$host/plugged"
  setsid unshare --net --mount --uts --ipc --pid --fork --kill-child -- \
    bash "$0" as_first_process "$host" </dev/null >"$LAB/$host/sshd.log" 2>&1 &
  wait_until "host $host" test -s "$LAB/$host/pid"
  pid=$(<"$LAB/$host/pid")

  # The name of the interface differs between hosts, as it often does between real ones. A host that is switched on
  # again keeps its hardware address, which the other hosts remember.
  at_switch ip link add "port_$host" type veth peer name "eth_$host" \
    address "02:00:00:00:00:0$(number_of "$host")" netns "$pid"
  at_switch ip link set "port_$host" master switch up
  v4=192.0.2.$(number_of "$host")/24 v6=fd00::$(number_of "$host")/64
  nsenter --target "$pid" --net sh -c "
    ip link set lo up && ip link set eth_$host up &&
    ip address add $v4 dev eth_$host && ip address add $v6 dev eth_$host nodad"
  touch "$LAB/$host/plugged"
  wait_until "the SSH server of $host" grep -q 'listening on ::' "$LAB/$host/sshd.log"
}

# Process 1 of a host, in new namespaces: it prepares them, runs the SSH server and waits for orphans.
as_first_process() {
  local host=$1 outer checkout _
  read -r outer _ </proc/self/stat # its process ID on the machine, because /proc is still the /proc of the machine
  # Private file systems, which are not visible outside
  mount --make-rprivate /
  checkout=$(cd "$(dirname "$0")/.." && pwd -P)
  if [[ $checkout == /tmp/* ]]; then # the own /tmp must not hide the checkout
    mkdir -p "$LAB/$host$checkout"
    mount --bind "$checkout" "$LAB/$host$checkout"
  fi
  mount --rbind "$LAB/$host/tmp" /tmp
  mount --bind "$LAB/$host/work" "$LAB/work"
  mount --bind "$LAB/hosts" /etc/hosts
  mount -t tmpfs -o mode=1777 none /dev/shm
  mount -t tmpfs -o mode=755 none /run
  mount -t proc proc /proc
  mkdir /run/sshd /run/cgroup
  mount --rbind /sys/fs/cgroup /run/cgroup
  mount -t sysfs sysfs /sys
  mount --move /run/cgroup /sys/fs/cgroup
  echo "$host" >/proc/sys/kernel/hostname
  # Wait for the cable: the addresses must exist before the server starts
  echo "$outer" >"$LAB/$host/pid"
  until [ -e "$LAB/$host/plugged" ]; do sleep 0.05; done
  "$(PATH=$PATH:/usr/sbin:/sbin command -v sshd)" -D -e -f /dev/null -h "$LAB/$host/host_key" \
    -o AuthorizedKeysFile="$LAB/key.pub" -o StrictModes=no -o PermitRootLogin=prohibit-password \
    -o PasswordAuthentication=no -o UsePAM=no -o PidFile=none -o MaxStartups=100 -o MaxSessions=100 &
  while true; do wait -n || true; sleep 1; done # bash also collects orphans of the host that have ended
}

run_on() {
  local host=${1:-}
  require_on "$host"
  shift
  [ $# -gt 0 ] || fail "exec $host: give a command"
  exec nsenter --target "$(<"$LAB/$host/pid")" --net --mount --uts --ipc --pid --wdns="$PWD" -- "$@"
}

link() {
  local host=$1
  require_on "$host"
  case ${2:-} in
    down) at_switch ip link set "port_$host" down ;;
    up) at_switch ip link set "port_$host" master switch up ;;
    silent) at_switch ip link set "port_$host" nomaster ;;
    *) fail "link $host ${2:-}: give down, up or silent" ;;
  esac
}

# Switch a host off. Unplug its cable first, so that its processes cannot send anything to other hosts while they end.
power_off() {
  local host=$1 pid
  require_on "$host"
  pid=$(<"$LAB/$host/pid")
  at_switch ip link del "port_$host"
  kill -KILL "$pid" # the kernel then ends all other processes of the host
  while [ -d "/proc/$pid" ]; do sleep 0.05; done
}

status() {
  local host state
  for host in "${NAMES[@]}"; do
    [ -d "$LAB/$host/work" ] || continue
    state=off
    is_on "$host" && state=on
    echo "$host  192.0.2.$(number_of "$host")  fd00::$(number_of "$host")  eth_$host  $state"
  done
}

down() {
  local host
  [ -e "$LAB/ssh_config" ] || fail "there are no hosts in $LAB"
  for host in "${NAMES[@]}"; do
    if is_on "$host"; then power_off "$host"; fi
  done
  if [ -s "$LAB/switch.pid" ]; then kill "$(<"$LAB/switch.pid")" 2>/dev/null || true; fi
  rm -rf "$LAB"
}

case ${1:-} in
  up) up "${2:-2}" ;;
  exec) run_on "${@:2}" ;;
  link) link "${2:-}" "${3:-}" ;;
  kill) power_off "${2:-}" ;;
  start)
    require_host "${2:-}"
    if is_on "$2"; then fail "host $2 is on"; fi
    boot "$2"
    ;;
  status) status ;;
  path) echo "$LAB" ;;
  check) check ;;
  down) down ;;
  as_first_process) as_first_process "$2" ;;
  *)
    usage
    [[ ${1:-} == -h || ${1:-} == --help ]] || exit 2
    ;;
esac
