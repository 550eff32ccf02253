/* Which frames that pass go to the node's own sockets instead of the kernel: those for its addresses, at ports of AF_XDP sockets.
 *
 *   IPv4, IPv6         the destination address
 *   ARP                the target's protocol address: requests for the node's addresses, and replies to its own requests
 *   ICMPv6 solicitation of a multicast group: the target in the message
 *
 * The kernel has the others, also those with VLAN tags and those of no IP.
 */
#ifndef CSP_DELIVER_H
#define CSP_DELIVER_H

#include "maps.h"
#include "parse.h"

#define PROTOCOL_ICMP_V6 58
#define NEIGHBOUR_SOLICITATION 135
#define ARP_LEN 28
#define SOLICITATION_LEN 24

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

/* The action for a frame that passes. Without a socket of its queue the kernel gets it. */
static __always_inline int deliver(struct xdp_md *context, __u32 port, struct scratch *scratch)
{
	__u8 *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	__u32 queue = context->rx_queue_index;

	if (queue >= QUEUES_MAX || !is_owned(data, end, &scratch->owned))
		return XDP_PASS;
	return bpf_redirect_map(&sockets, port * QUEUES_MAX + queue, XDP_PASS);
}

#endif
