/* Which frames that pass go to the node's own sockets instead of the kernel: those for its addresses, at ports of AF_XDP sockets.
 *
 *   IPv4, IPv6         the destination address
 *   ARP                the target's protocol address: requests for the node's addresses, and replies to its own requests
 *   ICMPv6 solicitation of a multicast group: the target in the message
 *
 * Where the workers have a way back to the kernel (TAKES_MATCHED), they also get IP packets for other addresses that a rule of level 2
 * decides on, or that are not plain. Priority tags (VLAN 0) are no way around that: the kernel reads such frames as if they had none.
 *
 * The kernel has the others, also those of VLANs and those of no IP.
 */
#ifndef CSP_DELIVER_H
#define CSP_DELIVER_H

#include "maps.h"
#include "parse.h"

#define PROTOCOL_ICMP_V6 58
#define NEIGHBOUR_SOLICITATION 135
#define ARP_LEN 28
#define VLAN_LEN 4
#define VLAN_MASK 0xfff
#define SOLICITATION_LEN 24
/* A verdict beside the actions of XDP: it passes, and the plug-ins of the workers come before the kernel. */
#define TO_WORKER 0x100

static __always_inline int is_owned_v4(const __u8 *address, struct address_key *key)
{
	__builtin_memset(key, 0, sizeof(*key));
	key->family = 4;
	__builtin_memcpy(key->address, address, 4);
	return !!bpf_map_lookup_elem(&owned, key);
}

static __always_inline int is_owned_v6(const __u8 *address, struct address_key *key)
{
	key->family = 6;
	__builtin_memcpy(key->address, address, 16);
	return !!bpf_map_lookup_elem(&owned, key);
}

static __always_inline int is_owned(__u8 *data, void *end, struct address_key *key)
{
	__u8 *packet = data + ETHERNET_LEN;

	if ((void *)packet > end)
		return 0;
	__u32 kind = data[12] << 8 | data[13];
	if (kind == 0x0800)
		return (void *)(packet + IPV4_LEN) <= end && is_owned_v4(packet + 16, key);
	if (kind == 0x0806)
		return (void *)(packet + ARP_LEN) <= end && is_owned_v4(packet + 24, key);
	if (kind != 0x86dd || (void *)(packet + IPV6_LEN) > end)
		return 0;
	if (packet[24] != 0xff)
		return is_owned_v6(packet + 24, key);
	return packet[6] == PROTOCOL_ICMP_V6 && (void *)(packet + IPV6_LEN + SOLICITATION_LEN) <= end &&
	       packet[IPV6_LEN] == NEIGHBOUR_SOLICITATION && is_owned_v6(packet + IPV6_LEN + 8, key);
}

/* Whether the kernel's stack reads a packet in a frame: an IP packet, also behind priority tags. */
static __always_inline int is_packet(__u8 *data, void *end)
{
	if ((void *)(data + ETHERNET_LEN) > end)
		return 0;
	__u32 kind = data[12] << 8 | data[13];
	if (kind == 0x0800 || kind == 0x86dd)
		return 1;
	if ((kind != 0x8100 && kind != 0x88a8) || (void *)(data + ETHERNET_LEN + VLAN_LEN) > end)
		return 0;
	return !((data[14] << 8 | data[15]) & VLAN_MASK);
}

/* Gives a frame to the socket of its queue. Without one the kernel gets it. */
static __always_inline int to_socket(struct xdp_md *context, __u32 port)
{
	__u32 queue = context->rx_queue_index;

	if (queue >= QUEUES_MAX)
		return XDP_PASS;
	return bpf_redirect_map(&sockets, port * QUEUES_MAX + queue, XDP_PASS);
}

/* The action for a frame that passes. */
static __always_inline int deliver(struct xdp_md *context, __u32 port, struct scratch *scratch)
{
	__u8 *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;

	return is_owned(data, end, &scratch->owned) ? to_socket(context, port) : XDP_PASS;
}

/* The verifier knows nothing of the result, which is the value: otherwise it would follow what comes behind once for each way here. */
static __always_inline __u32 forget(__u32 value, const struct config *config)
{
	__u32 any = config->now;

	asm volatile("%0 ^= %1\n\t%0 ^= %1" : "+r"(value) : "r"(any));
	return value;
}

#endif
