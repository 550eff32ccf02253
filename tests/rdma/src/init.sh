#!/bin/busybox sh
# First program of a guest: loads modules, mounts a tmpfs over the host's root and switches to it.
# Any failure ends the guest: the kernel panics when its first program ends, and QEMU then exits.
set -e
/bin/busybox mkdir -p /proc /sys /dev /lower /over /root
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
exec > /dev/console 2>&1 < /dev/null
while read -r module; do insmod "/modules/$module"; done < /modules/order
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose host /lower
mount -t tmpfs -o size=75% over /over
mkdir /over/upper /over/work
mount -t overlay -o lowerdir=/lower,upperdir=/over/upper,workdir=/over/work root /root
for folder in proc sys dev run; do mkdir -p "/root/$folder"; done
mount --move /proc /root/proc
mount --move /sys /root/sys
mount --move /dev /root/dev
mount -t tmpfs run /root/run
mkdir -p /root/dev/pts /root/dev/shm
mount -t devpts pts /root/dev/pts
mount -t tmpfs shm /root/dev/shm
cp /setup.sh /root/run/setup.sh
exec switch_root /root /bin/sh /run/setup.sh
