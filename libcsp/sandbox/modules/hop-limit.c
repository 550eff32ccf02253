/* Drops packets that have crossed too many routers: whose TTL (IPv4) or hop limit (IPv6) is below the parameter, 1 to 255. With 255 only
 * hosts of the same link pass (RFC 5082). Without a parameter, and what is not IP, passes.
 */
#include "csp_packet.h"

/* Ethernet with two VLAN tags, and an IPv6 header. */
CSP_PACKET(14 + 8 + 40, 1)

static uint32_t least;

CSP_EXPORT(configure) int32_t configure(uint32_t len)
{
    static const char why[] = "the parameter is the least hop limit that passes, 1 to 255";
    char text[3];
    uint32_t number = 0, count = csp_parameters(0, sizeof text, text);
    for (uint32_t i = 0; i < count; i++)
        number = text[i] >= '0' && text[i] <= '9' ? number * 10 + (uint32_t)(text[i] - '0') : 1000;
    if (len > sizeof text || (len > 0 && (number < 1 || number > 255))) {
        csp_refuse(why, sizeof why - 1);
        return 2;
    }
    least = number;
    return 0;
}

CSP_EXPORT(on_packet) int32_t on_packet(void)
{
    uint32_t at = csp_packet->ip + (csp_packet->version == 4 ? 8 : 7);
    if (csp_packet->version == 0 || at >= csp_packet->captured)
        return CSP_NEXT(0);
    return csp_packet->frame[at] < least ? CSP_DROP : CSP_NEXT(0);
}
