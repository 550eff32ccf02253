/*
 * libcsp: asynchronous messages and streams over Virtual Interfaces.
 *
 * A context owns everything that a program has of the library. What arrives, and what became of what was sent, is told
 * as events; csp_poll() gives them. No function waits but csp_wait(), and the first use of streams, which may wait two
 * seconds for the agent of this host. The library starts no thread, handles no signal, prints nothing.
 *
 * Handles are numbers; 0 is never one. A handle of something that was closed names nothing: functions answer
 * CSP_EHANDLE. Functions return 0 (or a count) or a negative code.
 *
 * One thread at a time may be in a context; another gets CSP_EBUSY. Different contexts are independent. In a child after
 * fork() the parent's contexts answer CSP_EFORK; csp_close() gives back what the child has of them.
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
/* Buffers that may wait to be sent on one connection; csp_send() answers CSP_EAGAIN beyond. */
#define CSP_QUEUE_MAX 256
/* Buffers with received data of one stream that the program may hold; the library reads no further beyond. */
#define CSP_LENT_MAX 16
/* Room that csp_address() needs at most, in bytes. */
#define CSP_ADDRESS_MAX 64

/* Codes: Linux error numbers, negative, where there is one that fits. */
#define CSP_OK 0
#define CSP_EIO (-5)             /* the system refused a call that should not fail */
#define CSP_EAGAIN (-11)         /* nothing to be had now: try again after events */
#define CSP_ENOMEM (-12)         /* no memory */
#define CSP_EACCES (-13)         /* not allowed */
#define CSP_EBUSY (-16)          /* another thread is in this context */
#define CSP_EINVAL (-22)         /* an argument is wrong */
#define CSP_EMFILE (-24)         /* a table is full */
#define CSP_EPIPE (-32)          /* this direction of the connection has ended */
#define CSP_EMSGSIZE (-90)       /* longer than a message may be */
#define CSP_EADDRINUSE (-98)     /* somebody listens there */
#define CSP_ECONNRESET (-104)    /* the connection broke */
#define CSP_ENOBUFS (-105)       /* no free buffer in the pool */
#define CSP_ENOTCONN (-107)      /* not connected */
#define CSP_ETIMEDOUT (-110)     /* no answer in time */
#define CSP_ECONNREFUSED (-111)  /* nobody accepts there */
#define CSP_EHOSTUNREACH (-113)  /* no proxy leads there */
#define CSP_ECANCELED (-125)     /* ended by the program before it was done */
#define CSP_EHANDLE (-1001)      /* not a handle, or of something that was closed */
#define CSP_EBUFFER (-1002)      /* not a buffer that the program holds */
#define CSP_ECONTEXT (-1003)     /* of another context */
#define CSP_EFORK (-1004)        /* the context stayed with the parent process */
#define CSP_EAGENT (-1005)       /* no agent of this host answers */
#define CSP_EADMIT (-1006)       /* the agent of this host refuses this process */

/* A context, a listener, a connection (a stream or a channel). */
typedef uint64_t csp_context;
typedef uint64_t csp_listener;
typedef uint64_t csp_connection;

/*
 * A buffer of the context's pool, as long as the program holds it: from csp_buffer_get(), CSP_RECEIVED or CSP_SENT until
 * csp_send() or csp_buffer_release(). A program may move data within the buffer and set length; it leaves id alone.
 */
struct csp_buffer {
	uint64_t id;       /* its name; another each time it is handed over */
	void *data;        /* the bytes */
	uint32_t capacity; /* how many fit from data on */
	uint32_t length;   /* how many there are */
};

enum csp_event_type {
	CSP_ACCEPTED = 1,  /* a listener has a new connection: accepted */
	CSP_CONNECTED = 2, /* a connection that was asked for is there */
	CSP_RECEIVED = 3,  /* buffer holds what arrived; the program gives it back */
	CSP_SENT = 4,      /* buffer was sent and is the program's again, or error says why it never will be sent */
	CSP_END = 5,       /* the peer of a stream sends no more; the program may */
	CSP_CLOSED = 6     /* the connection is gone: error says why, 0 that the peer closed a channel */
};

struct csp_event {
	uint32_t type;            /* enum csp_event_type */
	int32_t error;            /* 0 or a code */
	uint64_t handle;          /* the connection, or the listener of CSP_ACCEPTED */
	csp_connection accepted;  /* the new connection of CSP_ACCEPTED, else 0 */
	void *user;               /* the handle's pointer */
	uint64_t tag;             /* CSP_SENT: the word given to csp_send() */
	struct csp_buffer buffer; /* CSP_RECEIVED and CSP_SENT: a buffer, the program's from now on */
	uint32_t immediate;       /* CSP_RECEIVED of a channel: the sender's 32 bits */
	uint32_t reserved;        /* 0 */
};

/* What a context is made with. 0 and NULL mean the default. Set size to sizeof(struct csp_options). */
struct csp_options {
	uint32_t size;
	uint32_t buffer_size;     /* bytes of each buffer: 16384 (the default) to 1 MiB */
	uint32_t send_buffers;    /* buffers that csp_buffer_get() gives: 2 to 65536, default 256 */
	uint32_t receive_buffers; /* buffers for what arrives: as above */
	uint32_t connections;     /* connections at once: 1 to 131072, default 1024 */
	uint32_t reserved;        /* 0 */
	const char *program;      /* the program's name, a file name (at most 255 bytes, no /); default: that of its file */
	const char *agent;        /* the agent's socket; default: $CSP_AGENT, else /run/csp/agent.sock */
	const char *channels;     /* folder of channels' names; default: $CSP_CHANNELS, else /run/csp/channels */
};

/* csp_send(): the buffer goes back to the pool by itself; no CSP_SENT follows. */
#define CSP_RELEASE 1u
/* csp_listen_channel(): processes of other users may connect; ask csp_peer_user() who they are. */
#define CSP_ANY_USER 1u
/* csp_listen_channel(), csp_connect_channel(): messages are lent where they arrived, in memory that the peer can write to. */
#define CSP_IN_PLACE 2u
/* csp_end(): what is queued is not sent; the peer of a stream sees a reset. */
#define CSP_ABORT 1u

/* csp_address(): which end. */
#define CSP_LOCAL 0
#define CSP_REMOTE 1

/* The library's version, "0.1.0"; and a code's name (NULL for an unknown one) and meaning. All static. */
const char *csp_version(void);
const char *csp_error_name(int error);
const char *csp_error_text(int error);

/* Makes a context; options may be NULL. */
int csp_open(csp_context *context, const struct csp_options *options);
/*
 * Ends a context with all that it owns: handles name nothing, buffers are unmapped. What csp_send() took and CSP_SENT
 * reported is delivered; what is still queued is lost.
 */
int csp_close(csp_context context);

/* The descriptor to wait on: readable once there is something to poll, after csp_arm(). The context's; do not close. */
int csp_fd(csp_context context);
/* Makes the descriptor become readable at the next news. 1: there are some already, and it is readable now. */
int csp_arm(csp_context context);
/*
 * Up to count events; how many. Never waits. Everything moves in here: call it often. After csp_end() no event of the
 * connection is given but CSP_SENT; events given before, in the same array, may still name it.
 */
int csp_poll(csp_context context, struct csp_event *events, int count);
/* As csp_poll(), after waiting for at most timeout_ms milliseconds (-1: for ever, or until a signal) for the first. */
int csp_wait(csp_context context, struct csp_event *events, int count, int timeout_ms);

/* A buffer to fill. CSP_ENOBUFS: the pool has none now; CSP_SENT and csp_buffer_release() bring some. */
int csp_buffer_get(csp_context context, struct csp_buffer *buffer);
/* Gives a buffer back to its pool. */
int csp_buffer_release(const struct csp_buffer *buffer);

/*
 * Streams, through the proxies of the cluster. address is "192.0.2.7:80", "[2001:db8::7]:80"; to listen, ":80" too.
 * CSP_ACCEPTED comes with each connection; CSP_CONNECTED or CSP_CLOSED follows a connection that was asked for.
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
 * Sends buffer->length bytes from buffer->data on, after what was given before. The buffer is the library's until CSP_SENT
 * gives it back with tag. On an error it stays the program's. immediate must be 0 on a stream. May be called before
 * CSP_CONNECTED. A buffer of CSP_RECEIVED may be sent as it is.
 */
int csp_send(csp_connection connection, const struct csp_buffer *buffer, uint32_t immediate, unsigned int flags,
             uint64_t tag);
/* Ends the sending direction of a stream after what is queued: the peer reads its end. */
int csp_shutdown(csp_connection connection);
/*
 * Ends a listener or a connection: the handle names nothing from now on. What is queued is sent first, CSP_SENT comes for
 * it, and no other event. A stream with data that was not received resets, as a kernel's socket does.
 */
int csp_end(uint64_t handle, unsigned int flags);

/* Sets the pointer that events of a handle carry. */
int csp_set_user(uint64_t handle, void *user);
/* Writes an end of a stream, "192.0.2.7:80", to text; its length. */
int csp_address(csp_connection connection, int which, char *text, size_t size);
/* The user id of the process at the other end of a channel that was accepted here, as the kernel tells it. */
int csp_peer_user(csp_connection connection, uint32_t *user);

#ifdef __cplusplus
}
#endif

#endif
