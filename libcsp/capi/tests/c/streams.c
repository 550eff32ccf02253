/*
 * Streams through the cluster, from a host with an agent: streams ECHO CLOSED, where ECHO is the address of an echo server
 * outside and CLOSED one where nobody listens.
 */
#define _GNU_SOURCE
#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

static csp_connection connected(csp_context context, const char *address)
{
	csp_connection stream;
	GIVES(0, csp_connect_stream(context, address, &stream, &stream));
	struct csp_event event = NEXT(context, CSP_CONNECTED);
	CHECK(event.handle == stream && event.user == &stream && event.error == 0);
	GIVES(0, csp_set_user(stream, NULL));
	return stream;
}

/* Megabytes there and back, in buffers of every length, with a window of what the pool has; then both ends. */
static void everything_comes_back(csp_context context, const char *address, size_t all)
{
	csp_connection stream = connected(context, address);
	size_t sent = 0, received = 0;
	uint32_t length = 1, in_flight = 0;
	int ended = 0;
	while (!ended || in_flight > 0) {
		struct csp_buffer buffer;
		while (sent < all && csp_buffer_get(context, &buffer) == 0) {
			length = length * 7 % buffer.capacity + 1;
			buffer.length = all - sent < length ? (uint32_t)(all - sent) : length;
			for (uint32_t i = 0; i < buffer.length; i++)
				((unsigned char *)buffer.data)[i] = (unsigned char)((sent + i) * 31 >> 3);
			int code = csp_send(stream, &buffer, 0, 0, sent);
			if (code == CSP_EAGAIN) {
				GIVES(0, csp_buffer_release(&buffer));
				break;
			}
			GIVES(0, code);
			sent += buffer.length;
			in_flight++;
			if (sent == all)
				GIVES(0, csp_shutdown(stream));
		}
		struct csp_event events[8];
		int count = csp_wait(context, events, 8, 10000);
		CHECK(count > 0);
		for (int i = 0; i < count; i++) {
			struct csp_event *e = &events[i];
			CHECK(e->handle == stream && e->error == 0);
			if (e->type == CSP_END) {
				ended = 1;
				continue;
			}
			in_flight -= e->type == CSP_SENT;
			if (e->type == CSP_RECEIVED) {
				const unsigned char *data = e->buffer.data;
				for (uint32_t at = 0; at < e->buffer.length; at++)
					CHECK(data[at] == (unsigned char)((received + at) * 31 >> 3));
				received += e->buffer.length;
			}
			GIVES(0, csp_buffer_release(&e->buffer));
		}
	}
	CHECK(received == all);
	struct csp_buffer late = filled(context, "x");
	GIVES(CSP_EPIPE, csp_send(stream, &late, 0, 0, 0)); /* after csp_shutdown() */
	GIVES(0, csp_buffer_release(&late));
	GIVES(0, csp_end(stream, 0));
	GIVES(CSP_EHANDLE, csp_shutdown(stream));
}

static void misuse(csp_context context, const char *address)
{
	csp_connection stream = connected(context, address);
	char text[CSP_ADDRESS_MAX];
	int length = csp_address(stream, CSP_REMOTE, text, sizeof text);
	CHECK(length == (int)strlen(address) && strcmp(text, address) == 0);
	CHECK(csp_address(stream, CSP_LOCAL, text, sizeof text) > 0);
	GIVES(CSP_EMSGSIZE, csp_address(stream, CSP_REMOTE, text, (size_t)length));
	GIVES(CSP_EINVAL, csp_address(stream, 2, text, sizeof text));
	struct csp_buffer buffer = filled(context, "hello");
	GIVES(CSP_EINVAL, csp_send(stream, &buffer, 1, 0, 0)); /* immediate data on a stream */
	/* The child's copy is silent; the parent's stream goes on. */
	fflush(NULL);
	pid_t child = fork();
	if (child == 0) {
		GIVES(CSP_EFORK, csp_send(stream, &buffer, 0, 0, 0));
		GIVES(0, csp_close(context));
		_exit(0);
	}
	int status;
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	GIVES(0, csp_send(stream, &buffer, 0, CSP_RELEASE, 0));
	struct csp_event event = NEXT(context, CSP_RECEIVED);
	CHECK(event.buffer.length == 5 && memcmp(event.buffer.data, "hello", 5) == 0);
	GIVES(0, csp_buffer_release(&event.buffer));
	GIVES(0, csp_end(stream, CSP_ABORT));
	GIVES(CSP_EHANDLE, csp_end(stream, CSP_ABORT));
}

static void what_does_not_connect(csp_context context, const char *closed)
{
	csp_connection stream;
	GIVES(CSP_EHOSTUNREACH, csp_connect_stream(context, "203.0.113.9:80", NULL, &stream));
	GIVES(0, csp_connect_stream(context, closed, NULL, &stream));
	/* What was queued comes back with the reason. */
	struct csp_buffer buffer = filled(context, "x");
	GIVES(0, csp_send(stream, &buffer, 0, 0, 5));
	struct csp_event sent = NEXT(context, CSP_SENT);
	CHECK(sent.error == CSP_ECONNREFUSED && sent.tag == 5);
	GIVES(0, csp_buffer_release(&sent.buffer));
	struct csp_event event = NEXT(context, CSP_CLOSED);
	CHECK(event.handle == stream && event.error == CSP_ECONNREFUSED);
	GIVES(CSP_EPIPE, csp_shutdown(stream));
	GIVES(0, csp_end(stream, 0));
}

/* A program that keeps what it was lent stops the peer, not the library: other streams go on. */
static void a_greedy_stream_starves_itself_only(csp_context context, const char *address)
{
	csp_connection greedy = connected(context, address), other = connected(context, address);
	struct csp_buffer held[CSP_LENT_MAX];
	int count = 0;
	for (int i = 0; i < 4 * CSP_LENT_MAX; i++) {
		struct csp_buffer buffer;
		GIVES(0, csp_buffer_get(context, &buffer));
		memset(buffer.data, i, buffer.capacity);
		buffer.length = buffer.capacity;
		GIVES(0, csp_send(greedy, &buffer, 0, CSP_RELEASE, 0));
	}
	while (count < CSP_LENT_MAX)
		held[count++] = NEXT(context, CSP_RECEIVED).buffer;
	struct csp_buffer buffer = filled(context, "go on");
	GIVES(0, csp_send(other, &buffer, 0, CSP_RELEASE, 0));
	struct csp_event event = NEXT(context, CSP_RECEIVED);
	CHECK(event.handle == other);
	GIVES(0, csp_buffer_release(&event.buffer));
	while (count > 0)
		GIVES(0, csp_buffer_release(&held[--count]));
	CHECK(NEXT(context, CSP_RECEIVED).handle == greedy);
	/* Neither is ended: csp_close() does. */
}

/* Contexts with an agent, a proxy's links and a stream each, one after another: no descriptor stays. */
static void contexts_come_and_go(const char *address)
{
	int before = 0;
	for (int i = 0; i < 60; i++) {
		csp_context context;
		GIVES(0, csp_open(&context, NULL));
		csp_connection stream = connected(context, address);
		struct csp_buffer buffer = filled(context, "hello");
		GIVES(0, csp_send(stream, &buffer, 0, CSP_RELEASE, 0));
		CHECK(NEXT(context, CSP_RECEIVED).buffer.length == 5);
		GIVES(0, csp_close(context));
		int lowest = dup(0);
		CHECK(lowest >= 0 && close(lowest) == 0);
		CHECK(i < 5 || lowest == before);
		before = lowest;
	}
}

int main(int argc, char **argv)
{
	csp_context context;
	CHECK(argc == 3);
	GIVES(0, csp_open(&context, NULL));
	everything_comes_back(context, argv[1], (size_t)4 << 20);
	misuse(context, argv[1]);
	what_does_not_connect(context, argv[2]);
	a_greedy_stream_starves_itself_only(context, argv[1]);
	GIVES(0, csp_close(context));
	contexts_come_and_go(argv[1]);
	puts("streams: good");
	return 0;
}
