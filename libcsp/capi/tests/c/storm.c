/*
 * Random calls of three contexts, good and bad ones: messages of a channel keep their order, no buffer is lost, handles of
 * the past name nothing. storm SEED STEPS; the seed replays.
 */
#define _GNU_SOURCE
#include "check.h"

#define CONTEXTS 3
#define LINES 64
#define HELD 96
#define BUFFERS 24

/* One end of a channel as the program sees it. */
struct line {
	csp_connection handle; /* 0: this entry is free */
	uint32_t sent, received;
	int gone;
};

static struct side {
	csp_context context;
	csp_listener listener;
	char name[16];
	struct line lines[LINES];
	struct csp_buffer held[HELD];
	int held_count;
	uint32_t receive_buffers;
	uint64_t stale; /* a handle that was ended */
} sides[CONTEXTS];

static uint64_t state;
static int received, accepted, closed;

static uint32_t draw(uint32_t below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 32) % below;
}

static void open_side(struct side *s, int at)
{
	struct csp_options options = { .size = sizeof options, .send_buffers = BUFFERS,
		                       .receive_buffers = 2 + draw(20), .connections = LINES };
	uint64_t stale = s->stale;
	memset(s, 0, sizeof *s);
	s->stale = stale;
	s->receive_buffers = options.receive_buffers;
	snprintf(s->name, sizeof s->name, "storm%d", at);
	GIVES(0, csp_open(&s->context, &options));
	GIVES(0, csp_listen_channel(s->context, s->name, draw(2) ? CSP_IN_PLACE : 0, NULL, &s->listener));
}

static struct line *free_line(struct side *s)
{
	for (int i = 0; i < LINES; i++)
		if (s->lines[i].handle == 0)
			return &s->lines[i];
	return NULL;
}

static void end_line(struct side *s, struct line *line)
{
	GIVES(0, csp_end(line->handle, draw(2) ? CSP_ABORT : 0));
	GIVES(CSP_EHANDLE, csp_end(line->handle, 0));
	s->stale = line->handle;
	line->handle = 0;
}

static void release_one(struct side *s, int at)
{
	GIVES(0, csp_buffer_release(&s->held[at]));
	GIVES(CSP_EBUFFER, csp_buffer_release(&s->held[at]));
	s->held[at] = s->held[--s->held_count];
}

static void hold(struct side *s, const struct csp_buffer *buffer)
{
	s->held[s->held_count++] = *buffer;
	if (s->held_count == HELD || draw(3) > 0)
		release_one(s, s->held_count - 1);
}

static void on_event(struct side *s, const struct csp_event *event)
{
	struct line *line = event->user;
	received += event->type == CSP_RECEIVED;
	accepted += event->type == CSP_ACCEPTED;
	closed += event->type == CSP_CLOSED;
	if (event->type == CSP_ACCEPTED) {
		line = free_line(s);
		if (line == NULL) {
			GIVES(0, csp_end(event->accepted, CSP_ABORT));
			return;
		}
		memset(line, 0, sizeof *line);
		line->handle = event->accepted;
		GIVES(0, csp_set_user(line->handle, line));
		return;
	}
	if (event->type == CSP_RECEIVED || event->type == CSP_SENT)
		hold(s, &event->buffer);
	if (line == NULL || line->handle != event->handle)
		return; /* of a connection that ended in this very batch, or a buffer that came back of one */
	if (event->type == CSP_RECEIVED)
		CHECK(!line->gone && event->immediate == line->received++);
	if (event->type == CSP_CLOSED)
		line->gone = 1;
}

static void poll_side(struct side *s)
{
	struct csp_event events[8];
	int count = csp_poll(s->context, events, 1 + (int)draw(8));
	CHECK(count >= 0);
	for (int i = 0; i < count; i++)
		on_event(s, &events[i]);
}

static void send_on(struct side *s, struct line *line)
{
	struct csp_buffer buffer;
	if (csp_buffer_get(s->context, &buffer) != 0) {
		if (s->held_count > 0)
			release_one(s, (int)draw((uint32_t)s->held_count));
		return;
	}
	buffer.length = draw(4) ? draw(200) : draw(CSP_MESSAGE_MAX + 2);
	int code = csp_send(line->handle, &buffer, line->sent, draw(2) ? CSP_RELEASE : 0, 0);
	if (code == 0) {
		line->sent++;
		GIVES(CSP_EBUFFER, csp_buffer_release(&buffer));
		return;
	}
	CHECK(code == CSP_EAGAIN || (code == CSP_EPIPE && line->gone) || code == CSP_EPIPE ||
	      (code == CSP_EMSGSIZE && buffer.length > CSP_MESSAGE_MAX) || (code == CSP_EINVAL && buffer.length > buffer.capacity));
	GIVES(0, csp_buffer_release(&buffer));
}

static void step(void)
{
	int at = (int)draw(CONTEXTS);
	struct side *s = &sides[at], *other = &sides[draw(CONTEXTS)];
	struct line *line = &s->lines[draw(LINES)];
	uint32_t what = draw(100);
	if (what < 40) {
		poll_side(s);
	} else if (what < 75) {
		if (line->handle != 0)
			send_on(s, line);
	} else if (what < 82) {
		if (s->held_count > 0)
			release_one(s, (int)draw((uint32_t)s->held_count));
	} else if (what < 90) {
		if (line->handle == 0) {
			memset(line, 0, sizeof *line);
			int code = csp_connect_channel(s->context, other->name, draw(2) ? CSP_IN_PLACE : 0, line, &line->handle);
			CHECK(code == 0 || code == CSP_EMFILE);
		}
	} else if (what < 94) {
		if (line->handle != 0)
			end_line(s, line);
	} else if (what < 99) {
		struct csp_buffer none = { 0 };
		GIVES(CSP_EHANDLE, csp_set_user(s->stale, NULL));
		GIVES(CSP_EHANDLE, csp_send(s->stale, &none, 0, 0, 0));
		CHECK(csp_arm(s->context) >= 0);
	} else if (draw(20) == 0) {
		s->stale = s->context;
		GIVES(0, csp_close(s->context));
		GIVES(CSP_EHANDLE, csp_close(s->context));
		open_side(s, at);
	}
}

/* As many messages as there are buffers for what arrives can be held at once. */
static void every_receive_buffer_is_there(struct side *s)
{
	csp_connection to_self;
	GIVES(0, csp_listen_channel(s->context, "settled", 0, NULL, &s->listener));
	GIVES(0, csp_connect_channel(s->context, "settled", 0, NULL, &to_self));
	for (uint32_t i = 0; i < s->receive_buffers; i++) {
		struct csp_buffer buffer = filled(s->context, "x");
		GIVES(0, csp_send(to_self, &buffer, i, CSP_RELEASE, 0));
	}
	for (uint32_t count = 0; count < s->receive_buffers;) {
		struct csp_event event;
		CHECK(csp_wait(s->context, &event, 1, 10000) == 1);
		count += event.type == CSP_RECEIVED;
	}
	GIVES(0, csp_end(s->listener, 0));
}

/* Everything is ended and released: every buffer is free again. */
static void settle_side(struct side *s)
{
	for (int i = 0; i < LINES; i++)
		if (s->lines[i].handle != 0)
			end_line(s, &s->lines[i]);
	GIVES(0, csp_end(s->listener, 0));
	struct csp_event event;
	while (csp_poll(s->context, &event, 1) == 1)
		on_event(s, &event);
	while (s->held_count > 0)
		release_one(s, 0);
	struct csp_buffer all[BUFFERS + 1];
	int count = 0;
	while (count <= BUFFERS && csp_buffer_get(s->context, &all[count]) == 0)
		count++;
	CHECK(count == BUFFERS);
	while (count > 0)
		GIVES(0, csp_buffer_release(&all[--count]));
	every_receive_buffer_is_there(s);
	GIVES(0, csp_close(s->context));
}

int main(int argc, char **argv)
{
	uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
	int steps = argc > 2 ? atoi(argv[2]) : 100000;
	state = seed * 0x9e3779b97f4a7c15u + 1;
	printf("seed %llu\n", (unsigned long long)seed);
	fflush(stdout);
	for (int i = 0; i < CONTEXTS; i++)
		open_side(&sides[i], i);
	for (int i = 0; i < steps; i++)
		step();
	for (int i = 0; i < CONTEXTS; i++)
		settle_side(&sides[i]);
	printf("%d channels accepted, %d closed by their peer, %d messages received\n", accepted, closed, received);
	CHECK(received > steps / 50);
	puts("storm: good");
	return 0;
}
