/*
 * An echo server: every byte of every stream, and every message of every channel, goes back to where it came from.
 *
 *     cc -o echo_server echo_server.c $(pkg-config --cflags --libs csp)
 *     ./echo_server stream :7 channel echo
 *
 * What arrives lies in a buffer of the library's pool, and the same buffer is sent back: the program copies nothing.
 */
#include <csp.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>

static volatile sig_atomic_t stopping;

static void stop(int signal_number)
{
	(void)signal_number;
	stopping = 1;
}

static void complain(const char *what, int error)
{
	fprintf(stderr, "echo_server: %s: %s\n", what, csp_error_text(error));
}

static void handle(const struct csp_event *event)
{
	int error;

	switch (event->type) {
	case CSP_RECEIVED:
		error = csp_send(event->handle, &event->buffer, event->immediate, CSP_RELEASE, 0);
		if (error != 0) {
			/* The peer is gone: CSP_CLOSED comes next. The buffer is still ours. */
			csp_buffer_release(&event->buffer);
		}
		break;
	case CSP_END:
		/* The client sends no more. What is queued still goes back, then the connection ends. */
		csp_end(event->handle, 0);
		break;
	case CSP_CLOSED:
		csp_end(event->handle, 0);
		break;
	default:
		/* CSP_ACCEPTED needs no answer; CSP_SENT does not come with CSP_RELEASE. */
		break;
	}
}

static int listen_at(csp_context context, const char *kind, const char *where)
{
	csp_listener listener;

	if (strcmp(kind, "stream") == 0)
		return csp_listen_stream(context, where, 128, NULL, &listener);
	if (strcmp(kind, "channel") == 0)
		return csp_listen_channel(context, where, CSP_ANY_USER, NULL, &listener);
	return CSP_EINVAL;
}

int main(int argc, char **argv)
{
	csp_context context;
	struct csp_event events[64];
	int error = csp_open(&context, NULL);

	if (argc < 3 || argc % 2 == 0) {
		fprintf(stderr, "usage: %s [stream ADDRESS:PORT]... [channel NAME]...\n", argv[0]);
		return 64;
	}
	if (error != 0) {
		complain("csp_open", error);
		return 1;
	}
	for (int i = 1; i < argc; i += 2) {
		error = listen_at(context, argv[i], argv[i + 1]);
		if (error != 0) {
			complain(argv[i + 1], error);
			return 1;
		}
	}
	signal(SIGTERM, stop);
	signal(SIGINT, stop);
	puts("listening");
	fflush(stdout);
	while (!stopping) {
		int count = csp_wait(context, events, 64, 1000);
		if (count < 0) {
			complain("csp_wait", count);
			return 1;
		}
		for (int i = 0; i < count; i++)
			handle(&events[i]);
	}
	csp_close(context);
	return 0;
}
