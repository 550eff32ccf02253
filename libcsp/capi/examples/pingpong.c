/*
 * How long a message takes between two processes of this host: half of a round trip.
 *
 *     cc -O2 -o pingpong pingpong.c $(pkg-config --cflags --libs csp)
 *     CSP_CHANNELS=/tmp/channels ./pingpong [poll|wait] [copy|inplace] [BYTES [ROUNDS]]
 */
#define _GNU_SOURCE
#include <csp.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static bool waits;

static void must(const char *what, int error)
{
	if (error < 0) {
		fprintf(stderr, "pingpong: %s: %s\n", what, csp_error_text(error));
		exit(1);
	}
}

static struct csp_event next(csp_context context)
{
	struct csp_event event;
	int count;

	do {
		count = waits ? csp_wait(context, &event, 1, -1) : csp_poll(context, &event, 1);
		must("next event", count);
	} while (count == 0);
	return event;
}

static void send_some(csp_context context, csp_connection channel, uint32_t bytes)
{
	struct csp_buffer buffer;

	must("csp_buffer_get", csp_buffer_get(context, &buffer));
	buffer.length = bytes;
	must("csp_send", csp_send(channel, &buffer, 0, CSP_RELEASE, 0));
}

/* Sends a message back for each that comes, until the channel closes. */
static int answer(csp_context context, uint32_t bytes)
{
	for (;;) {
		struct csp_event event = next(context);

		if (event.type == CSP_CLOSED)
			return 0;
		if (event.type == CSP_RECEIVED) {
			must("csp_buffer_release", csp_buffer_release(&event.buffer));
			send_some(context, event.handle, bytes);
		}
	}
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double now_us(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static void ask(csp_context context, csp_connection channel, uint32_t bytes, int rounds)
{
	double *half = calloc((size_t)rounds, sizeof *half);

	for (int i = 0; i < rounds; i++) {
		double start = now_us();
		struct csp_event event;

		send_some(context, channel, bytes);
		do
			event = next(context);
		while (event.type == CSP_CONNECTED);
		must("event", event.type == CSP_RECEIVED ? 0 : event.error - 1);
		must("csp_buffer_release", csp_buffer_release(&event.buffer));
		half[i] = (now_us() - start) / 2;
	}
	qsort(half, (size_t)rounds, sizeof *half, compare);
	printf("%u bytes, %s: half round trip %.3f us median, %.3f us 99th percentile\n", bytes,
	       waits ? "waiting" : "polling", half[rounds / 2], half[rounds - 1 - rounds / 100]);
	free(half);
}

int main(int argc, char **argv)
{
	unsigned int flags = argc > 2 && strcmp(argv[2], "inplace") == 0 ? CSP_IN_PLACE : 0;
	uint32_t bytes = argc > 3 ? (uint32_t)atoi(argv[3]) : 64;
	int rounds = argc > 4 ? atoi(argv[4]) : 100000;
	int ready[2], status = 1;
	char name[32], byte = 0;
	csp_context context;
	uint64_t handle;
	pid_t child;

	waits = argc > 1 && strcmp(argv[1], "wait") == 0;
	snprintf(name, sizeof name, "pingpong-%d", (int)getpid());
	if (pipe(ready) != 0 || (child = fork()) < 0)
		return 1;
	must("csp_open", csp_open(&context, NULL));
	if (child == 0) {
		must("csp_listen_channel", csp_listen_channel(context, name, flags, NULL, &handle));
		return write(ready[1], &byte, 1) == 1 ? answer(context, bytes) : 1;
	}
	if (read(ready[0], &byte, 1) != 1)
		return 1;
	must("csp_connect_channel", csp_connect_channel(context, name, flags, NULL, &handle));
	ask(context, handle, bytes, rounds);
	must("csp_close", csp_close(context));
	waitpid(child, &status, 0);
	return status != 0;
}
