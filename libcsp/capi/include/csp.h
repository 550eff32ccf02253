/*
 * libcsp: asynchronous messages and streams over Virtual Interfaces.
 *
 * A context owns everything that a program has of the library. Received data and the results of sending are reported as
 * events, which csp_poll() returns. No function blocks except csp_wait(), and the first use of streams, which may wait
 * two seconds for the agent of this host. The library starts no thread, handles no signal, and prints nothing.
 *
 * Handles are numbers; 0 is never a handle. For a handle of an object that was closed functions return CSP_EHANDLE.
 * Functions return 0 (or a count) or a negative code.
 *
 * One thread at a time may be in a context; another gets CSP_EBUSY. Different contexts are independent. In a child
 * after fork() the parent's contexts return CSP_EFORK; csp_close() releases the child's resources of them.
 *
 * C99, C11, C++. See csp(7).
 */
#ifndef CSP_H
#define CSP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CSP_VERSION_MAJOR 0
#define CSP_VERSION_MINOR 1

/* Longest message of a channel, in bytes. A stream has no such limit. */
#define CSP_MESSAGE_MAX 16384
/* Contexts of one process. */
#define CSP_CONTEXTS_MAX 64
/* Buffers that may be queued on one connection; beyond that csp_send() returns CSP_EAGAIN. */
#define CSP_QUEUE_MAX 256
/* Buffers with received data of one stream that the program may hold; the library reads no more until some return. */
#define CSP_LENT_MAX 16
/* Size of a text buffer that suffices for csp_address(), in bytes. */
#define CSP_ADDRESS_MAX 64

/* Codes: negative, with the number of a Linux error if one fits. */
#define CSP_OK 0
#define CSP_EIO (-5)             /* the system refused a call that should not fail */
#define CSP_EAGAIN (-11)         /* not possible now: try again after the next events */
#define CSP_ENOMEM (-12)         /* no memory */
#define CSP_EACCES (-13)         /* not allowed */
#define CSP_EBUSY (-16)          /* another thread is in this context */
#define CSP_EINVAL (-22)         /* an argument is invalid */
#define CSP_EMFILE (-24)         /* a table is full */
#define CSP_EPIPE (-32)          /* this direction of the connection has ended */
#define CSP_EMSGSIZE (-90)       /* longer than the longest message */
#define CSP_EADDRINUSE (-98)     /* the address or name is in use */
#define CSP_ECONNRESET (-104)    /* the connection broke */
#define CSP_ENOBUFS (-105)       /* no free buffer in the pool */
#define CSP_ENOTCONN (-107)      /* not connected */
#define CSP_ETIMEDOUT (-110)     /* no answer in time */
#define CSP_ECONNREFUSED (-111)  /* no listener accepts there */
#define CSP_EHOSTUNREACH (-113)  /* no proxy reaches the destination */
#define CSP_ECANCELED (-125)     /* ended by the program before completion */
#define CSP_EHANDLE (-1001)      /* the handle is invalid, or was closed */
#define CSP_EBUFFER (-1002)      /* not a buffer that the program holds */
#define CSP_ECONTEXT (-1003)     /* belongs to another context */
#define CSP_EFORK (-1004)        /* the context belongs to the parent process */
#define CSP_EAGENT (-1005)       /* the agent of this host does not answer */
#define CSP_EADMIT (-1006)       /* the agent of this host refuses this process */

/* A context, a listener, a connection (a stream or a channel). */
typedef uint64_t csp_context;
typedef uint64_t csp_listener;
typedef uint64_t csp_connection;

/*
 * A buffer of the context's pool, while the program holds it: from csp_buffer_get(), CSP_RECEIVED or CSP_SENT until
 * csp_send() or csp_buffer_release(). A program may move data within the buffer and set length; it must not change id.
 */
struct csp_buffer {
	uint64_t id;       /* its id; changes each time its holder changes */
	void *data;        /* the bytes */
	uint32_t capacity; /* room from data on, in bytes */
	uint32_t length;   /* number of bytes */
};

enum csp_event_type {
	CSP_ACCEPTED = 1,  /* a listener has a new connection: accepted */
	CSP_CONNECTED = 2, /* a requested connection is established */
	CSP_RECEIVED = 3,  /* buffer holds received data; the program must release or send it */
	CSP_SENT = 4,      /* the program holds buffer again: it was sent, or will not be sent for the reason in error */
	CSP_END = 5,       /* the peer of a stream ended its sending direction; the program may still send */
	CSP_CLOSED = 6     /* the connection ended: error is the reason, 0 if the peer closed a channel */
};

struct csp_event {
	uint32_t type;            /* enum csp_event_type */
	int32_t error;            /* 0 or a code */
	uint64_t handle;          /* the connection, or the listener of CSP_ACCEPTED */
	csp_connection accepted;  /* the new connection of CSP_ACCEPTED, else 0 */
	void *user;               /* the handle's pointer */
	uint64_t tag;             /* CSP_SENT: the tag passed to csp_send() */
	struct csp_buffer buffer; /* CSP_RECEIVED and CSP_SENT: a buffer that the program holds from now on */
	uint32_t immediate;       /* CSP_RECEIVED of a channel: the sender's 32 bits */
	uint32_t reserved;        /* 0 */
};

/* Options of a context. 0 and NULL mean the default. Set size to sizeof(struct csp_options). */
struct csp_options {
	uint32_t size;
	uint32_t buffer_size;     /* bytes of each buffer: 16384 (the default) to 1 MiB */
	uint32_t send_buffers;    /* buffers for csp_buffer_get(): 2 to 65536, default 256 */
	uint32_t receive_buffers; /* buffers for received data: as above */
	uint32_t connections;     /* connections at once: 1 to 131072, default 1024 */
	uint32_t reserved;        /* 0 */
	const char *program;      /* the program's name, a file name (at most 255 bytes, no /); default: that of its file */
	const char *agent;        /* the agent's socket; default: $CSP_AGENT, else /run/csp/agent.sock */
	const char *channels;     /* folder of channels' names; default: $CSP_CHANNELS, else /run/csp/channels */
};

/* csp_send(): the buffer returns to the pool after it was sent; no CSP_SENT follows. */
#define CSP_RELEASE 1u
/* csp_listen_channel(): processes of other users may connect; csp_peer_user() returns their user. */
#define CSP_ANY_USER 1u
/* csp_listen_channel(), csp_connect_channel(): messages are lent in place, in memory that the peer can write to. */
#define CSP_IN_PLACE 2u
/* csp_end(): queued buffers are not sent; the peer of a stream receives a reset. */
#define CSP_ABORT 1u

/* csp_address(): which end. */
#define CSP_LOCAL 0
#define CSP_REMOTE 1

/* The library's version, "0.1.0"; a code's name (NULL for an unknown code) and its meaning. All strings are static. */
const char *csp_version(void);
const char *csp_error_name(int error);
const char *csp_error_text(int error);

/* Opens a context; options may be NULL. */
int csp_open(csp_context *context, const struct csp_options *options);
/*
 * Closes a context with all that it owns: its handles become invalid and its buffers are unmapped. Data that CSP_SENT
 * reported without an error is delivered; queued data is lost.
 */
int csp_close(csp_context context);

/* The descriptor to wait on: readable when events are pending, after csp_arm(). The context owns it; do not close it. */
int csp_fd(csp_context context);
/* Makes the descriptor readable when the next event is pending. Returns 1 if one is pending already: it is readable now. */
int csp_arm(csp_context context);
/*
 * Stores up to count events; returns how many. Never blocks. All of the library's work is done in this call: call it
 * often. After csp_end() the only event of the connection is CSP_SENT; events stored before, in the same array, may
 * still refer to it.
 */
int csp_poll(csp_context context, struct csp_event *events, int count);
/* As csp_poll(), but waits up to timeout_ms milliseconds (-1: until an event or a signal) if there is no event. */
int csp_wait(csp_context context, struct csp_event *events, int count, int timeout_ms);

/* Gets a buffer to fill. CSP_ENOBUFS: none is free now; CSP_SENT or csp_buffer_release() return some. */
int csp_buffer_get(csp_context context, struct csp_buffer *buffer);
/* Returns a buffer to its pool. */
int csp_buffer_release(const struct csp_buffer *buffer);

/*
 * Streams, through the proxies of the cluster. address is "192.0.2.7:80" or "[2001:db8::7]:80"; to listen, also ":80".
 * Each accepted connection is reported by CSP_ACCEPTED; a requested connection by CSP_CONNECTED or CSP_CLOSED.
 */
int csp_listen_stream(csp_context context, const char *address, unsigned int backlog, void *user,
                      csp_listener *listener);
int csp_connect_stream(csp_context context, const char *address, void *user, csp_connection *connection);

/*
 * Channels: messages of up to CSP_MESSAGE_MAX bytes with 32 bits of immediate data, between processes of one host. A name
 * has 1 to 64 letters, digits, '.', '_' and '-', and does not start with '.'.
 */
int csp_listen_channel(csp_context context, const char *name, unsigned int flags, void *user,
                       csp_listener *listener);
int csp_connect_channel(csp_context context, const char *name, unsigned int flags, void *user,
                        csp_connection *connection);

/*
 * Sends buffer->length bytes from buffer->data on, after all buffers queued before. The library holds the buffer until
 * CSP_SENT returns it with tag. After an error the program still holds it. immediate must be 0 on a stream. May be
 * called before CSP_CONNECTED. A buffer of CSP_RECEIVED may be sent unchanged.
 */
int csp_send(csp_connection connection, const struct csp_buffer *buffer, uint32_t immediate, unsigned int flags,
             uint64_t tag);
/* Ends the sending direction of a stream after the queued buffers: the peer then reads the end of the stream. */
int csp_shutdown(csp_connection connection);
/*
 * Ends a listener or a connection; the handle becomes invalid. Queued buffers are sent first and reported by CSP_SENT;
 * no other event follows. A stream with received data that is not in a buffer yet is reset, as a kernel socket is.
 */
int csp_end(uint64_t handle, unsigned int flags);

/* Sets the pointer that events of a handle carry. */
int csp_set_user(uint64_t handle, void *user);
/* Writes the address of one end of a stream, such as "192.0.2.7:80", to text; returns its length. */
int csp_address(csp_connection connection, int which, char *text, size_t size);
/* Stores the user id of the process at the other end of a channel that was accepted here, as reported by the kernel. */
int csp_peer_user(csp_connection connection, uint32_t *user);

#ifdef __cplusplus
}
#endif

#endif
