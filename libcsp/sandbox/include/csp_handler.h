/* Handlers of messages for CSP, as WebAssembly modules: ABI version 1 (docs/handlers.md).
 *
 *   clang --target=wasm32 -O2 -nostdlib -Wl,--no-entry -Wl,-z,stack-size=16384 -o handler.wasm handler.c
 *
 * A module exports its memory, csp_abi and on_message (CSP_HANDLER and CSP_EXPORT below), and what else it needs. It imports only what is
 * declared here. It runs with one message at a time, and is not entered again before it has returned.
 */
#ifndef CSP_HANDLER_H
#define CSP_HANDLER_H

#include <stdint.h>

#define CSP_ABI_VERSION 1

/* What imports return, and what on_message, on_timer and configure return. Any other number from on_message or on_timer gives the message
 * up, any other from configure refuses the parameters. */
#define CSP_OK 0
#define CSP_FULL 1 /* an output has no room: change no state in this call, and return it to be called again */
#define CSP_NONE (-1)

#define CSP_EXPORT(name) __attribute__((visibility("default"), export_name(#name)))
#define CSP_IMPORT(name) __attribute__((import_module("csp"), import_name(#name)))

/* What becomes of the handler's state when another version of its module takes its place. */
#define CSP_STATE_DROPPED 0
#define CSP_STATE_KEPT 1        /* the block at the host, if both versions declare the same layout and length */
#define CSP_STATE_HANDED_OVER 2 /* bytes of the module's memory, by csp_state_export and csp_state_import */

/* What a module declares of itself. */
struct csp_declaration {
    uint32_t size;          /* sizeof(struct csp_declaration) */
    uint32_t outputs;       /* 1 to 8 */
    uint32_t new_len_max;   /* length in bytes of the longest message that it makes; 0: none */
    uint32_t period_ms;     /* how often on_timer is called; 0: never */
    void *buffer;           /* the host copies messages here before on_message, if they fit */
    uint32_t buffer_len;
    uint32_t state;         /* CSP_STATE_... */
    uint32_t state_len;     /* bytes of the state block at the host, zeros at first */
    uint32_t layout;        /* the version of the state's layout */
    uint32_t reserved;      /* 0 */
};

/* A part of a new message. */
struct csp_piece {
    uint32_t of_message;    /* 0: bytes of the module's memory; 1: bytes of the message */
    uint32_t at;            /* address, or bytes before the first one */
    uint32_t len;
};

/* Where a field lies. */
struct csp_field {
    uint32_t offset;        /* bytes before it in the frame of the format, its header included */
    uint32_t size;
    uint32_t kind;          /* 'c' text, 'i' signed, 'u' unsigned, 'f' floating point, 'x' composite */
    uint32_t flags;         /* bit 0: big-endian; from bit 16 on: the schema version that added it */
};

#ifdef __wasm__
_Static_assert(sizeof(struct csp_declaration) == 40, "the ABI has 40 bytes");
_Static_assert(sizeof(struct csp_piece) == 12, "the ABI has 12 bytes");
_Static_assert(sizeof(struct csp_field) == 16, "the ABI has 16 bytes");
#endif

/* Copies up to len bytes of the message from offset on. Returns how many there were. */
CSP_IMPORT(read) uint32_t csp_read(uint32_t offset, uint32_t len, void *into);
/* Returns the length of a frame, from 0 on, or CSP_NONE. */
CSP_IMPORT(frame_len) int32_t csp_frame_len(uint32_t frame);
/* Emits a message of one frame. Returns CSP_OK or CSP_FULL, as all emits do. */
CSP_IMPORT(emit) int32_t csp_emit(uint32_t output, uint32_t format, const void *from, uint32_t len);
/* Emits the message as it is. */
CSP_IMPORT(emit_same) int32_t csp_emit_same(uint32_t output);
/* Emits some of its frames, or some of its bytes. */
CSP_IMPORT(emit_frames) int32_t csp_emit_frames(uint32_t output, uint32_t format, uint32_t first, uint32_t count);
CSP_IMPORT(emit_range) int32_t csp_emit_range(uint32_t output, uint32_t format, uint32_t start, uint32_t len);
/* Emits a message of frames with these lengths from pieces in order: at most 16 frames and 32 pieces. */
CSP_IMPORT(emit_new) int32_t csp_emit_new(uint32_t output, uint32_t format, const uint32_t *frames, uint32_t frame_count,
                                          const struct csp_piece *pieces, uint32_t piece_count);
/* Reads and changes the state block. Only on_message and on_timer may change it; a call that fails has changed nothing. */
CSP_IMPORT(state_read) uint32_t csp_state_read(uint32_t offset, uint32_t len, void *into);
CSP_IMPORT(state_write) void csp_state_write(uint32_t offset, uint32_t len, const void *from);
/* Nanoseconds of the host's monotonic clock: of the call, and of the message's arrival. */
CSP_IMPORT(now) uint64_t csp_now(void);
CSP_IMPORT(arrived) uint64_t csp_arrived(void);
/* The number of the message in its channel. */
CSP_IMPORT(sequence) uint64_t csp_sequence(void);
/* Finds a field of a format by its path. Returns CSP_OK or CSP_NONE. */
CSP_IMPORT(locate) int32_t csp_locate(uint32_t format, const char *path, uint32_t path_len, struct csp_field *into);
/* Copies up to len bytes of the parameters from offset on. Returns how many there were. */
CSP_IMPORT(parameters) uint32_t csp_parameters(uint32_t offset, uint32_t len, void *into);
/* Says why configure refuses them: UTF-8 of up to 256 bytes. */
CSP_IMPORT(refuse) void csp_refuse(const char *from, uint32_t len);

/* Exports the version of the ABI and the declaration: once in a module, with the fields of struct csp_declaration but the first. */
#define CSP_HANDLER(...)                                                                                   \
    static const struct csp_declaration csp_declared = {.size = sizeof(struct csp_declaration), __VA_ARGS__}; \
    CSP_EXPORT(csp_abi) int32_t csp_abi(void) { return CSP_ABI_VERSION; }                                  \
    CSP_EXPORT(csp_declaration) const struct csp_declaration *csp_declaration(void) { return &csp_declared; }

/* What a module exports by CSP_EXPORT(name). All but on_message may be left out. */
int32_t on_message(uint32_t format, uint32_t len, uint32_t frames);
int32_t on_timer(void);
int32_t configure(uint32_t parameters_len);
int32_t csp_accepts(uint32_t format);                    /* whether it processes a format; left out: all */
uint32_t csp_yields(uint32_t output, uint32_t format);   /* the format of what it emits; left out: the same */
uint64_t csp_state_export(void);                         /* address << 32 | length of the state in memory */
void *csp_state_import(uint32_t layout, uint32_t len);   /* where to put such state before the first message; NULL: refused */

#endif
