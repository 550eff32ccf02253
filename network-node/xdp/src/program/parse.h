/* Frames to keys: which packets are plain, and what rules compare of them. */
#ifndef CSP_PARSE_H
#define CSP_PARSE_H

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "level1.h"

#define ETHERNET_LEN 14
#define IPV4_LEN 20
#define IPV6_LEN 40
#define TCP_LEN 20
#define PROTOCOL_TCP 6
/* Beyond the flags octet: the packet has no flags. Beyond all ports: it has no ports. */
#define NO_FLAGS 0x100
#define NO_PORT 0x10000
#define NOT_FOR_US 0xffffffff

enum kind { UNCLASSIFIED, PLAIN_V4, PLAIN_V6 };

static __always_inline int is_extension(__u8 protocol)
{
	return protocol == 0 || protocol == 43 || protocol == 44 || protocol == 51 || protocol == 60 || protocol == 135 ||
	       protocol == 139 || protocol == 140;
}

static __always_inline int has_ports(__u8 protocol)
{
	return protocol == 6 || protocol == 17 || protocol == 33 || protocol == 132 || protocol == 136;
}

/* Ports and flags of a header of `len` bytes; returns 0 if it contradicts itself. */
static __always_inline int parse_upper(__u8 *header, void *end, __u32 len, __u8 protocol, struct key *key)
{
	key->source_port = NO_PORT;
	key->destination_port = NO_PORT;
	key->flags = NO_FLAGS;
	if (!has_ports(protocol))
		return 1;
	if (len < 4 || (void *)(header + 4) > end)
		return 0;
	key->source_port = header[0] << 8 | header[1];
	key->destination_port = header[2] << 8 | header[3];
	if (protocol != PROTOCOL_TCP)
		return 1;
	if (len < TCP_LEN || (void *)(header + TCP_LEN) > end)
		return 0;
	__u32 header_len = (header[12] >> 4) * 4;
	if (header_len < TCP_LEN || header_len > len)
		return 0;
	key->flags = header[13];
	return 1;
}

static __always_inline __u64 rest_word(const struct key *key, __u32 port, __u8 protocol, __u8 dscp)
{
	__u64 source = key->source_port == NO_PORT ? 0 : key->source_port;
	__u64 destination = key->destination_port == NO_PORT ? 0 : key->destination_port;

	/* The direction's bits are 0: a packet that is received. */
	return source << 48 | destination << 32 | (__u64)(port & 0xffff) << 16 | (__u64)protocol << 8 | dscp;
}

static __always_inline enum kind parse_v4(__u8 *ip, void *end, __u32 len, __u32 port, struct key *key)
{
	__u32 *words = (__u32 *)ip;
	__u64 sum = 0;

	if ((void *)(ip + IPV4_LEN) > end || ip[0] != 0x45)
		return UNCLASSIFIED;
	/* The reserved bit, "more fragments" and the offset. */
	if ((ip[6] & 0xbf) || ip[7])
		return UNCLASSIFIED;
	__u32 total = ip[2] << 8 | ip[3];
	if (total < IPV4_LEN || ETHERNET_LEN + total > len)
		return UNCLASSIFIED;
	for (int at = 0; at < 5; at++)
		sum += words[at];
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	if (sum != 0xffff)
		return UNCLASSIFIED;
	if (!parse_upper(ip + IPV4_LEN, end, total - IPV4_LEN, ip[9], key))
		return UNCLASSIFIED;
	key->words[0] = (__u64)bpf_ntohl(words[3]) << 32 | bpf_ntohl(words[4]);
	key->words[1] = rest_word(key, port, ip[9], ip[1] >> 2);
	return PLAIN_V4;
}

static __always_inline __u64 be64_at(const __u8 *at)
{
	const __u32 *words = (const __u32 *)at;

	return (__u64)bpf_ntohl(words[0]) << 32 | bpf_ntohl(words[1]);
}

static __always_inline enum kind parse_v6(__u8 *ip, void *end, __u32 frame_len, __u32 port, struct key *key)
{
	if ((void *)(ip + IPV6_LEN) > end || ip[0] >> 4 != 6 || is_extension(ip[6]))
		return UNCLASSIFIED;
	__u32 len = ip[4] << 8 | ip[5];
	if (ETHERNET_LEN + IPV6_LEN + len > frame_len)
		return UNCLASSIFIED;
	if (!parse_upper(ip + IPV6_LEN, end, len, ip[6], key))
		return UNCLASSIFIED;
	key->words[0] = be64_at(ip + 8);
	key->words[1] = be64_at(ip + 16);
	key->words[2] = be64_at(ip + 24);
	key->words[3] = be64_at(ip + 32);
	key->words[4] = rest_word(key, port, ip[6], ((ip[0] << 4 | ip[1] >> 4) & 0xff) >> 2);
	return PLAIN_V6;
}
/* The number of an interface's port as the configuration has it, if the frame is for it; NOT_FOR_US if not. Each turn loads the address with
 * a constant offset, and the barrier keeps it there: without CAP_PERFMON the verifier allows no offset that a branch has chosen. The number is
 * loaded, too: were it the turn's, the verifier would follow all paths behind it once for each port. */
static __always_inline __u32 port_of(const struct config *config, __u32 ifindex, const __u8 *destination)
{
	__u64 to = *(const __u16 *)destination | (__u64)*(const __u32 *)(destination + 2) << 16;

#pragma clang loop unroll(full)
	for (__u32 at = 0; at < PORTS_MAX; at++) {
		const struct port *port = &config->ports[at];
		__u64 mac = *(const __u32 *)port->mac | (__u64)*(const __u32 *)(port->mac + 4) << 32;

		asm volatile("" : "+r"(mac));
		if (port->ifindex == ifindex)
			return to & 1 || mac << 16 >> 16 == to ? mac >> 48 : NOT_FOR_US;
	}
	return NOT_FOR_US;
}

#endif
