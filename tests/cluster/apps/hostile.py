"""Sends frames that no honest host sends: hostile.py INTERFACE ETHERNET-ADDRESS VIP KIND COUNT SEED."""
import random
import socket
import struct
import sys

SOURCE = "10.76.0.1"


def checksum(data):
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ipv4(payload, source, destination, protocol=6, fragment=0, ihl=5, total=None, damage=0):
    total = 20 + len(payload) if total is None else total
    head = struct.pack("!BBHHHBBH4s4s", 0x40 | ihl, 0, total, 1, fragment, 64, protocol, 0,
                       socket.inet_aton(source), socket.inet_aton(destination))
    return head[:10] + struct.pack("!H", checksum(head) ^ damage) + head[12:] + payload


def tcp(source, destination, sport, dport, flags, seq=1, ack=0, data=b"", offset=5, damage=0):
    head = struct.pack("!HHIIBBHHH", sport, dport, seq, ack, offset << 4, flags, 65535, 0, 0)
    pseudo = socket.inet_aton(source) + socket.inet_aton(destination) + struct.pack("!BBH", 0, 6, len(head) + len(data))
    value = checksum(pseudo + head + data) ^ damage
    return head[:16] + struct.pack("!H", value) + head[18:] + data


class Kinds:
    """One method per kind of hostility; each gives the bytes behind the two Ethernet addresses."""

    def __init__(self, vip, rng):
        self.vip, self.rng = vip, rng

    def stranger(self):
        return "10.76.0.%d" % self.rng.randrange(2, 99)

    def segment(self, flags, port=80, source=SOURCE, **more):
        sport = self.rng.randrange(1024, 65536)
        seq, ack = self.rng.getrandbits(32), self.rng.getrandbits(32)
        return tcp(source, self.vip, sport, port, flags, seq, ack, **more)

    def packet(self, payload, source=SOURCE, **more):
        return b"\x08\x00" + ipv4(payload, source, self.vip, **more)

    def garbage(self):
        return self.rng.randbytes(self.rng.randrange(2, 1500))

    def garbage_ip(self):
        kind = self.rng.choice([b"\x08\x00", b"\x08\x06", b"\x86\xdd"])
        return kind + self.rng.randbytes(self.rng.randrange(0, 400))

    def truncated(self):
        whole = self.packet(self.segment(2))
        return whole[:self.rng.randrange(2, len(whole))]

    def lengths(self):
        wrong = {"total": self.rng.randrange(0, 65536)} if self.rng.random() < 0.5 else {"ihl": self.rng.randrange(0, 16)}
        return self.packet(self.segment(2), **wrong)

    def offset(self):
        return self.packet(self.segment(2, offset=self.rng.choice([0, 1, 4, 12, 15])))

    def bad_ip_checksum(self):
        return self.packet(self.segment(2), damage=0x1234)

    def bad_tcp_checksum(self):
        return self.packet(self.segment(2, damage=0x4321))

    def fragment(self):
        return self.packet(self.segment(2), fragment=self.rng.choice([0x2000, 0x2001, 0x0007]))

    def closed_port(self):
        return self.packet(self.segment(2, port=self.rng.choice([1, 81, 443, 65535])))

    def other_protocol(self):
        return self.packet(self.rng.randbytes(32), protocol=self.rng.choice([17, 47, 132, 255]))

    def not_ours(self):
        return b"\x08\x00" + ipv4(self.segment(2), SOURCE, "10.76.0.%d" % self.rng.randrange(102, 250))

    def unknown_flow(self):
        return self.packet(self.segment(self.rng.choice([0x10, 0x04, 0x14, 0x11, 0x18]), data=self.rng.randbytes(9)))

    def odd_flags(self):
        return self.packet(self.segment(self.rng.choice([0, 0x03, 0x06, 0x3F, 0x29, 0xFF])))

    def syn_flood(self):
        source = self.stranger()
        return self.packet(self.segment(2, source=source), source=source)

    def mutated(self):
        whole = bytearray(self.packet(self.segment(2, data=self.rng.randbytes(20))))
        for _ in range(self.rng.randrange(1, 8)):
            whole[self.rng.randrange(2, len(whole))] = self.rng.randrange(256)
        return bytes(whole)


def main():
    interface, ethernet, vip, kind, count, seed = sys.argv[1:7]
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    port.bind((interface, 0))
    own = port.getsockname()[4]
    addresses = bytes.fromhex(ethernet.replace(":", "")) + own
    make = getattr(Kinds(vip, random.Random(int(seed))), kind)
    for _ in range(int(count)):
        port.send(addresses + make())


if __name__ == "__main__":
    main()
