# Second script of a guest, run with the host's programs: sets addresses, creates the Soft-RoCE device and runs the
# agent. The kernel's command line has the values csp.guest (its number, from 1) and csp.agent (this tool's binary).
exec > /dev/console 2>&1 < /dev/null
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
number= agent=
read -r line < /proc/cmdline
for word in $line; do
  case $word in
    csp.guest=*) number=${word#*=} ;;
    csp.agent=*) agent=${word#*=} ;;
  esac
done
echo "guest$number" > /proc/sys/kernel/hostname
ulimit -l unlimited
ulimit -n 65536
ip link set lo up
ip link set eth0 up
ip address add "10.99.0.$number/24" dev eth0
# The address is unique: skip the duplicate address detection, which takes a second.
ip address add "fd99::$number/64" dev eth0 nodad
rdma link add rxe0 type rxe netdev eth0
"$agent" agent
# The host has disconnected: switch the guest off.
echo o > /proc/sysrq-trigger
sleep 60
