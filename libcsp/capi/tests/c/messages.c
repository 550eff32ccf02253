/* Channels: messages with immediate data, order, backpressure, and how they end. */
#define _GNU_SOURCE
#include "check.h"

#include <poll.h>
#include <unistd.h>

static void a_message_and_its_answer(void)
{
	struct pair p = pair_up(NULL, "echo", 0);
	int word = 0;
	GIVES(0, csp_set_user(p.at_server, &word));
	struct csp_buffer buffer = filled(p.client, "how do you do");
	GIVES(0, csp_send(p.at_client, &buffer, 0xfeedbeef, 0, 42));
	struct csp_event sent = NEXT(p.client, CSP_SENT);
	CHECK(sent.tag == 42 && sent.error == 0 && sent.handle == p.at_client);
	CHECK(sent.buffer.data == buffer.data && sent.buffer.length == buffer.length && sent.buffer.id != buffer.id);
	GIVES(0, csp_buffer_release(&sent.buffer));

	struct csp_event got = NEXT(p.server, CSP_RECEIVED);
	CHECK(got.handle == p.at_server && got.user == &word && got.immediate == 0xfeedbeef);
	CHECK(got.buffer.length == 13 && memcmp(got.buffer.data, "how do you do", 13) == 0);
	/* What was received goes back as it is, without its first word and without an event. */
	got.buffer.data = (char *)got.buffer.data + 4;
	got.buffer.length -= 4;
	GIVES(0, csp_send(p.at_server, &got.buffer, 7, CSP_RELEASE, 0));
	struct csp_event back = NEXT(p.client, CSP_RECEIVED);
	CHECK(back.immediate == 7 && back.buffer.length == 9 && memcmp(back.buffer.data, "do you do", 9) == 0);
	GIVES(0, csp_buffer_release(&back.buffer));
	settle(p.client, p.server);

	uint32_t user;
	GIVES(0, csp_peer_user(p.at_server, &user));
	CHECK(user == getuid());
	GIVES(CSP_EINVAL, csp_peer_user(p.at_client, &user));
	close_pair(&p);
}

/* More messages than descriptors, buffers or queue have room: none is lost, none overtakes, and csp_send() reports when to stop. */
static void many_messages_keep_their_order(unsigned int flags)
{
	struct pair p = pair_up(NULL, "many", flags);
	uint32_t sent = 0, received = 0, refused = 0;
	const uint32_t all = 20000;
	while (received < all) {
		struct csp_buffer buffer;
		while (sent < all && csp_buffer_get(p.client, &buffer) == 0) {
			buffer.length = sent % (CSP_MESSAGE_MAX + 1);
			memset(buffer.data, (int)(sent & 0xff), buffer.length);
			int code = csp_send(p.at_client, &buffer, sent, CSP_RELEASE, 0);
			if (code != 0) {
				CHECK(code == CSP_EAGAIN);
				GIVES(0, csp_buffer_release(&buffer));
				refused++;
				break;
			}
			sent++;
		}
		refused += csp_buffer_get(p.client, &buffer) == CSP_ENOBUFS ? 1 : (csp_buffer_release(&buffer), 0);
		CHECK(csp_poll(p.client, NULL, 0) == 0);
		struct csp_event events[16];
		int count = csp_poll(p.server, events, 16);
		CHECK(count >= 0);
		for (int i = 0; i < count; i++) {
			CHECK(events[i].type == CSP_RECEIVED && events[i].immediate == received);
			uint32_t length = events[i].buffer.length;
			CHECK(length == received % (CSP_MESSAGE_MAX + 1));
			const unsigned char *data = events[i].buffer.data;
			CHECK(length == 0 || (data[0] == (received & 0xff) && data[length - 1] == (received & 0xff)));
			GIVES(0, csp_buffer_release(&events[i].buffer));
			received++;
		}
	}
	CHECK(refused > 0);
	close_pair(&p);
}

/* Lent where they arrived: what is held of one channel stops that one only. */
static void messages_where_they_arrived(void)
{
	struct csp_options options = { .size = sizeof options, .receive_buffers = 2, .send_buffers = 512 };
	struct pair p = pair_up(&options, "inplace", CSP_IN_PLACE);
	struct csp_buffer buffer = filled(p.client, "where it lies"), outside;
	GIVES(0, csp_send(p.at_client, &buffer, 3, CSP_RELEASE, 0));
	struct csp_event got = NEXT(p.server, CSP_RECEIVED);
	CHECK(got.immediate == 3 && got.buffer.length == 13 && got.buffer.capacity == 13);
	CHECK(memcmp(got.buffer.data, "where it lies", 13) == 0);
	outside = got.buffer;
	outside.length++;
	GIVES(CSP_EINVAL, csp_send(p.at_server, &outside, 0, 0, 0));
	outside.data = (char *)outside.data - 1;
	GIVES(CSP_EINVAL, csp_send(p.at_server, &outside, 0, 0, 0));
	GIVES(0, csp_send(p.at_server, &got.buffer, 4, CSP_RELEASE, 0));
	GIVES(CSP_EBUFFER, csp_buffer_release(&got.buffer)); /* no longer held */
	got = NEXT(p.client, CSP_RECEIVED);
	CHECK(got.immediate == 4 && got.buffer.length == 13);
	GIVES(0, csp_buffer_release(&got.buffer));
	GIVES(CSP_EBUFFER, csp_buffer_release(&got.buffer));

	struct csp_buffer held[CSP_QUEUE_MAX];
	int count = 0, sent = 0;
	for (int code = 0; code == 0; sent += code == 0) {
		buffer = filled(p.client, "x");
		code = csp_send(p.at_client, &buffer, (uint32_t)sent, CSP_RELEASE, 0);
		struct csp_event event;
		if (csp_poll(p.server, &event, 1) == 1) {
			CHECK(event.type == CSP_RECEIVED && count < CSP_QUEUE_MAX);
			held[count++] = event.buffer;
		}
		if (code != 0) {
			CHECK(code == CSP_EAGAIN);
			GIVES(0, csp_buffer_release(&buffer));
		}
	}
	CHECK(count > 32 && sent == count + CSP_QUEUE_MAX);
	csp_connection other;
	GIVES(0, csp_connect_channel(p.client, "inplace", CSP_IN_PLACE, NULL, &other));
	buffer = filled(p.client, "another way");
	GIVES(0, csp_send(other, &buffer, 0, CSP_RELEASE, 0));
	struct csp_event event = { 0 };
	while (event.type != CSP_RECEIVED) {
		CHECK(csp_poll(p.client, NULL, 0) == 0);
		CHECK(csp_wait(p.server, &event, 1, 100) >= 0);
	}
	CHECK(event.handle != p.at_server && event.buffer.length == 11);
	for (int i = 0; i < sent; i++) {
		if (i >= count) {
			CHECK(csp_poll(p.client, NULL, 0) >= 0);
			held[0] = NEXT(p.server, CSP_RECEIVED).buffer;
		}
		GIVES(0, csp_buffer_release(&held[i < count ? i : 0]));
		CHECK(csp_poll(p.client, NULL, 0) >= 0);
	}
	close_pair(&p);
}

static void what_is_held_outlives_the_channel(void)
{
	for (int ended_by_us = 0; ended_by_us < 2; ended_by_us++) {
		struct pair p = pair_up(NULL, "outlives", CSP_IN_PLACE);
		struct csp_buffer buffer = filled(p.client, "still here");
		GIVES(0, csp_send(p.at_client, &buffer, 0, CSP_RELEASE, 0));
		struct csp_event got = NEXT(p.server, CSP_RECEIVED);
		if (ended_by_us) {
			GIVES(0, csp_end(p.at_server, 0));
			GIVES(0, csp_end(p.listener, 0));
			GIVES(0, csp_close(p.client));
			GIVES(0, csp_poll(p.server, NULL, 0));
		} else {
			GIVES(0, csp_close(p.client));
			CHECK(NEXT(p.server, CSP_CLOSED).error == CSP_ECONNRESET);
		}
		CHECK(memcmp(got.buffer.data, "still here", 10) == 0);
		GIVES(0, csp_buffer_release(&got.buffer));
		GIVES(0, csp_close(p.server));
	}
}

/* A receiver that keeps its buffers stops the sender, and starts it again. */
static void a_slow_receiver_stops_the_sender(void)
{
	struct csp_options options = { .size = sizeof options, .send_buffers = 1024, .receive_buffers = 8 };
	struct pair p = pair_up(&options, "slow", 0);
	uint32_t queued = 0;
	for (;;) {
		struct csp_buffer buffer = filled(p.client, "x");
		int code = csp_send(p.at_client, &buffer, queued, CSP_RELEASE, 0);
		CHECK(csp_poll(p.server, NULL, 0) == 0);
		if (code == CSP_EAGAIN)
			break;
		GIVES(0, code);
		queued++;
	}
	CHECK(queued >= CSP_QUEUE_MAX);
	struct csp_event events[64];
	for (uint32_t received = 0; received < queued;) {
		CHECK(csp_poll(p.client, NULL, 0) == 0);
		int count = csp_wait(p.server, events, 64, 1000);
		CHECK(count > 0 && count <= 8);
		for (int i = 0; i < count; i++) {
			CHECK(events[i].type == CSP_RECEIVED && events[i].immediate == received++);
			GIVES(0, csp_buffer_release(&events[i].buffer));
		}
	}
	close_pair(&p);
}

static void ends(void)
{
	struct pair p = pair_up(NULL, "ends", 0);
	/* What was sent before the end arrives, and then the end; the handle is the program's to end. */
	struct csp_buffer last = filled(p.client, "last words");
	GIVES(0, csp_send(p.at_client, &last, 0, 0, 0));
	GIVES(0, csp_end(p.at_client, 0));
	GIVES(CSP_EHANDLE, csp_end(p.at_client, 0));
	NEXT(p.client, CSP_SENT);
	struct csp_event got = NEXT(p.server, CSP_RECEIVED);
	CHECK(got.buffer.length == 10);
	struct csp_event closed = NEXT(p.server, CSP_CLOSED);
	CHECK(closed.handle == p.at_server && closed.error == 0);
	struct csp_buffer more = filled(p.server, "x");
	GIVES(CSP_EPIPE, csp_send(p.at_server, &more, 0, 0, 0));
	GIVES(0, csp_end(p.at_server, 0));
	GIVES(CSP_EHANDLE, csp_send(p.at_server, &more, 0, 0, 0));

	/* A process that goes without a word is a connection that broke. */
	GIVES(0, csp_connect_channel(p.client, "ends", 0, NULL, &p.at_client));
	while (csp_wait(p.server, &got, 1, 1) == 0)
		CHECK(csp_poll(p.client, NULL, 0) == 0);
	CHECK(got.type == CSP_ACCEPTED);
	GIVES(0, csp_close(p.client));
	closed = NEXT(p.server, CSP_CLOSED);
	CHECK(closed.handle == got.accepted && closed.error == CSP_ECONNRESET);

	/* A listener that ended is nobody's to find; its channels would stay. */
	GIVES(0, csp_open(&p.client, NULL));
	GIVES(0, csp_end(p.listener, 0));
	GIVES(0, csp_connect_channel(p.client, "ends", 0, &p, &p.at_client));
	closed = NEXT(p.client, CSP_CLOSED);
	CHECK(closed.error == CSP_ECONNREFUSED && closed.user == &p);
	close_pair(&p);
}

/* What is sent before the channel is there goes out when it is. */
static void sending_before_connected(void)
{
	csp_context client, server;
	csp_listener listener;
	csp_connection early;
	GIVES(0, csp_open(&client, NULL));
	GIVES(0, csp_open(&server, NULL));
	GIVES(0, csp_listen_channel(server, "early", 0, NULL, &listener));
	GIVES(0, csp_connect_channel(client, "early", 0, NULL, &early));
	struct csp_buffer buffer = filled(client, "early bird");
	GIVES(0, csp_send(early, &buffer, 1, CSP_RELEASE, 0));
	struct csp_event event;
	while (csp_wait(server, &event, 1, 1) == 0)
		CHECK(csp_poll(client, NULL, 0) == 0);
	NEXT(client, CSP_CONNECTED);
	CHECK(event.type == CSP_ACCEPTED && NEXT(server, CSP_RECEIVED).buffer.length == 10);
	GIVES(0, csp_close(client));
	GIVES(0, csp_close(server));
}

/* The descriptor is readable after csp_arm() as soon as there is something, and not before. */
static void the_descriptor_becomes_readable(void)
{
	struct pair p = pair_up(NULL, "armed", 0);
	settle(p.client, p.server);
	struct pollfd fd = { .fd = csp_fd(p.server), .events = POLLIN };
	CHECK(fd.fd >= 0);
	while (csp_arm(p.server) != 0)
		CHECK(csp_poll(p.server, NULL, 0) == 0);
	CHECK(poll(&fd, 1, 0) == 0);
	struct csp_buffer buffer = filled(p.client, "wake up");
	GIVES(0, csp_send(p.at_client, &buffer, 0, CSP_RELEASE, 0));
	CHECK(poll(&fd, 1, 10000) == 1);
	CHECK(poll(&fd, 1, 0) == 1); /* level: it stays readable until polled */
	NEXT(p.server, CSP_RECEIVED);
	GIVES(0, csp_arm(p.server));
	CHECK(poll(&fd, 1, 0) == 0);
	/* Events that wait already make it readable at once. */
	buffer = filled(p.client, "x");
	GIVES(0, csp_send(p.at_client, &buffer, 0, 0, 0));
	fd.fd = csp_fd(p.client);
	GIVES(1, csp_arm(p.client));
	CHECK(poll(&fd, 1, 0) == 1);
	NEXT(p.client, CSP_SENT);
	close_pair(&p);
}

int main(void)
{
	a_message_and_its_answer();
	many_messages_keep_their_order(0);
	many_messages_keep_their_order(CSP_IN_PLACE);
	messages_where_they_arrived();
	what_is_held_outlives_the_channel();
	a_slow_receiver_stops_the_sender();
	ends();
	sending_before_connected();
	the_descriptor_becomes_readable();
	puts("messages: good");
	return 0;
}
