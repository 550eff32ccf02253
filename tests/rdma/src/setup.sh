# Second part, on the host's programs: addresses, the Soft-RoCE device, the agent. The values come by the kernel's
# command line: csp.guest (its number, from 1), csp.agent (this tool's binary).
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
# Nobody else has the address: without the second of probing for it.
ip address add "fd99::$number/64" dev eth0 nodad
rdma link add rxe0 type rxe netdev eth0
"$agent" agent
# The host is gone, or done with this guest.
echo o > /proc/sysrq-trigger
sleep 60
