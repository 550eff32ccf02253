/* Packet plug-ins for CSP, as WebAssembly modules: packet ABI version 1 (docs/plugins.md).
 *
 *   clang --target=wasm32 -O2 -nostdlib -Wl,--no-entry -Wl,-z,stack-size=16384 -o plugin.wasm plugin.c
 *
 * A module exports its memory, what CSP_PACKET declares, on_packet, and configure if it has parameters. It imports only what is declared
 * here. It runs with one packet at a time, and is not entered again before it has returned.
 */
#ifndef CSP_PACKET_H
#define CSP_PACKET_H

#include <stdint.h>

#define CSP_PACKET_ABI_VERSION 1

#define CSP_EXPORT(name) __attribute__((visibility("default"), export_name(#name)))
#define CSP_IMPORT(name) __attribute__((import_module("csp"), import_name(#name)))

/* What on_packet returns: one of the first three, and CSP_CHANGED if the buffer is to be copied back. */
#define CSP_NEXT(output) ((int32_t)((uint32_t)(output) << 16))                /* to what is connected to the output, else routed */
#define CSP_DROP 1
#define CSP_TRANSMIT(interface) ((int32_t)(2 | (uint32_t)(interface) << 16))  /* on a LAN port, by its place in the configuration */
#define CSP_CHANGED 0x100

#define CSP_FLAG_CHECKSUM_PARTIAL 1 /* the transport checksum holds the sum of the pseudo header; the device completes it */
#define CSP_FLAG_RESIZABLE 2        /* len may be changed, up to room */
#define CSP_FLAG_LATER_FRAGMENT 4   /* it has no transport header */

/* What the host writes into the buffer; the frame follows. Places are bytes from the start of the frame. */
struct csp_packet {
    uint32_t len;       /* length of the frame */
    uint32_t captured;  /* bytes of it in the buffer */
    uint64_t now;       /* nanoseconds of the host's monotonic clock */
    uint32_t ip;        /* the IP header; 0, as the next two, if the frame is no IP packet, or malformed */
    uint32_t transport; /* the header of the layer above */
    uint32_t end;       /* end of the packet by its IP header; padding may follow */
    uint16_t interface;
    uint16_t coalesced; /* packets that the frame represents */
    uint8_t version;    /* 4, 6, or 0 */
    uint8_t protocol;   /* of the layer above */
    uint8_t egress;     /* 1: transmitted to the LAN; 0: received from there */
    uint8_t flags;
    uint32_t room;      /* the longest length that it may get */
    uint8_t frame[];
};

/* What a module declares of itself. */
struct csp_packet_declaration {
    uint32_t size;        /* sizeof(struct csp_packet_declaration) */
    uint32_t outputs;     /* 1 to 8 */
    void *buffer;         /* a struct csp_packet, with room for what the module looks at of a frame */
    uint32_t buffer_len;  /* 54 to 65,589 bytes */
    uint32_t reserved[2]; /* 0 */
};

#ifdef __wasm__
_Static_assert(sizeof(struct csp_packet) == 40, "the ABI has 40 bytes");
_Static_assert(sizeof(struct csp_packet_declaration) == 24, "the ABI has 24 bytes");
#endif

/* Copies up to len bytes of the parameters from offset on. Returns how many there were. */
CSP_IMPORT(parameters) uint32_t csp_parameters(uint32_t offset, uint32_t len, void *into);
/* Says why configure refuses them: UTF-8 of up to 256 bytes. */
CSP_IMPORT(refuse) void csp_refuse(const char *from, uint32_t len);

/* Declares the buffer `csp_packet` for `frame_len` bytes of each frame, and exports what the ABI needs: once in a module. */
#define CSP_PACKET(frame_len, output_count)                                                                     \
    static union {                                                                                              \
        struct csp_packet packet;                                                                               \
        uint8_t bytes[sizeof(struct csp_packet) + (frame_len)];                                                 \
    } csp_buffer;                                                                                               \
    static struct csp_packet *const csp_packet = &csp_buffer.packet;                                            \
    static const struct csp_packet_declaration csp_declared = {sizeof csp_declared, output_count, &csp_buffer,  \
                                                               sizeof csp_buffer.bytes, {0, 0}};                \
    CSP_EXPORT(csp_packet_abi) int32_t csp_packet_abi(void) { return CSP_PACKET_ABI_VERSION; }                  \
    CSP_EXPORT(csp_packet_declaration) const struct csp_packet_declaration *csp_packet_declaration(void)        \
    {                                                                                                           \
        return &csp_declared;                                                                                   \
    }

/* What a module exports by CSP_EXPORT(name). configure may be left out; it returns 0, or refuses its parameters. */
int32_t on_packet(void);
int32_t configure(uint32_t parameters_len);

#endif
