/* What the C tests share: a check that prints where it failed, and turns of two contexts until something happened. */
#ifndef CHECK_H
#define CHECK_H

#include <csp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                          \
	do {                                                                 \
		if (!(what)) {                                               \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what); \
			exit(1);                                             \
		}                                                            \
	} while (0)

/* A call that must return exactly this code. */
#define GIVES(code, call)                                                                        \
	do {                                                                                     \
		int given_ = (call);                                                             \
		if (given_ != (code)) {                                                          \
			fprintf(stderr, "%s:%d: %s gave %d (%s), not %s\n", __FILE__, __LINE__, #call, \
			        given_, csp_error_text(given_), #code);                          \
			exit(1);                                                                 \
		}                                                                                \
	} while (0)

/* Waits for the next event of a context, at most ten seconds, which must be of this type. */
static inline struct csp_event next_event(csp_context context, int type, const char *file, int line)
{
	struct csp_event event;
	int count = csp_wait(context, &event, 1, 10000);
	if (count != 1 || event.type != (uint32_t)type) {
		fprintf(stderr, "%s:%d: wait gave %d, type %d, error %s; wanted type %d\n", file, line, count,
		        count == 1 ? (int)event.type : 0, count == 1 ? csp_error_text(event.error) : "-", type);
		exit(1);
	}
	return event;
}
#define NEXT(context, type) next_event(context, type, __FILE__, __LINE__)

/* Two contexts in one process do not wait for each other: both move until each has nothing left. */
static inline void settle(csp_context a, csp_context b)
{
	for (int i = 0; i < 50; i++) {
		GIVES(0, csp_poll(a, NULL, 0));
		GIVES(0, csp_poll(b, NULL, 0));
	}
}

/* A channel between two contexts: the client's end and the server's. */
struct pair {
	csp_context client, server;
	csp_listener listener;
	csp_connection at_client, at_server;
};

static inline struct pair pair_up(const struct csp_options *options, const char *name, unsigned int flags)
{
	struct pair p;
	GIVES(0, csp_open(&p.client, options));
	GIVES(0, csp_open(&p.server, options));
	GIVES(0, csp_listen_channel(p.server, name, flags, NULL, &p.listener));
	GIVES(0, csp_connect_channel(p.client, name, flags, NULL, &p.at_client));
	for (;;) {
		struct csp_event event;
		CHECK(csp_poll(p.client, NULL, 0) == 0);
		if (csp_wait(p.server, &event, 1, 1) == 1) {
			CHECK(event.type == CSP_ACCEPTED && event.handle == p.listener && event.error == 0);
			p.at_server = event.accepted;
			break;
		}
	}
	CHECK(NEXT(p.client, CSP_CONNECTED).handle == p.at_client);
	return p;
}

static inline void close_pair(const struct pair *p)
{
	GIVES(0, csp_close(p->client));
	GIVES(0, csp_close(p->server));
}

/* A buffer with a text in it. */
static inline struct csp_buffer filled(csp_context context, const char *text)
{
	struct csp_buffer buffer;
	GIVES(0, csp_buffer_get(context, &buffer));
	buffer.length = (uint32_t)strlen(text);
	memcpy(buffer.data, text, buffer.length);
	return buffer;
}

#endif
