/*
 * A static-file HTTP server: HTTP/1.1 with keep-alive and pipelining, GET and HEAD.
 *
 *     cc -o http_server http_server.c $(pkg-config --cflags --libs csp)
 *     ./http_server :80 /srv/www
 *
 * Files are read straight into buffers of the library's pool. A client has at most WINDOW of them on their way: one that
 * reads slowly holds up nobody else, and memory stays bounded however large the file is.
 */
#define _GNU_SOURCE
#include <csp.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Longest request, head only. */
#define REQUEST_MAX 8192
/* Buffers that one client may have on their way. */
#define WINDOW 4

struct client {
	csp_connection connection;
	struct client *next_waiting; /* found no buffer; served when one comes back */
	struct client *next_dead;
	bool waiting;
	bool gone;         /* no connection any more: freed when the last buffer is back */
	bool dead;         /* to be freed after the events in hand, which may still point to it */
	bool last;         /* no request follows the one that is answered */
	bool peer_ended;   /* the client sends no more */
	unsigned in_flight;
	int file;          /* what is being sent, or -1 */
	off_t offset, end; /* of the file */
	char head[1024];   /* the answer's head, until it found a buffer */
	size_t head_length;
	size_t have;       /* of the request */
	char request[REQUEST_MAX];
};

static csp_context context;
static int root;
static struct client *waiting;
static struct client *dead;
static volatile sig_atomic_t stopping;

static void stop(int signal_number)
{
	(void)signal_number;
	stopping = 1;
}

static bool busy(const struct client *c)
{
	return c->head_length > 0 || c->file >= 0;
}

static const char *content_type(const char *path)
{
	static const char *const types[][2] = {
		{ ".html", "text/html; charset=utf-8" }, { ".txt", "text/plain; charset=utf-8" },
		{ ".css", "text/css" }, { ".js", "text/javascript" }, { ".json", "application/json" },
		{ ".svg", "image/svg+xml" }, { ".png", "image/png" }, { ".jpg", "image/jpeg" },
	};
	const char *dot = strrchr(path, '.');

	for (size_t i = 0; dot != NULL && i < sizeof types / sizeof *types; i++)
		if (strcmp(dot, types[i][0]) == 0)
			return types[i][1];
	return "application/octet-stream";
}

static void answer_head(struct client *c, const char *status, const char *type, off_t length)
{
	int n = snprintf(c->head, sizeof c->head,
	                 "HTTP/1.1 %s\r\nServer: csp-http\r\nContent-Type: %s\r\nContent-Length: %lld\r\n"
	                 "Connection: %s\r\n\r\n",
	                 status, type, (long long)length, c->last ? "close" : "keep-alive");
	c->head_length = (size_t)n;
}

/* An answer without a file: its body is the status. */
static void answer_text(struct client *c, const char *status, bool with_body)
{
	answer_head(c, status, "text/plain; charset=utf-8", (off_t)strlen(status) + 1);
	if (with_body) {
		c->head_length += (size_t)snprintf(c->head + c->head_length, sizeof c->head - c->head_length,
		                                   "%s\n", status);
	}
}

static int hex(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c = (char)(c | 0x20);
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Decodes the target's path in place; false where it is no path. Where it leads is the kernel's affair: see open_file. */
static bool decode(char *target)
{
	char *to = target;

	if (*target != '/')
		return false;
	for (char *from = target; *from != 0 && *from != '?' && *from != '#'; from++) {
		int high, low;

		if (*from != '%') {
			*to++ = *from;
			continue;
		}
		high = hex(from[1]);
		low = high < 0 ? -1 : hex(from[2]);
		if (low < 0 || (high == 0 && low == 0))
			return false;
		*to++ = (char)(high * 16 + low);
		from += 2;
	}
	*to = 0;
	return true;
}

/* Opens a path below the root, which neither ".." nor a symbolic link leaves. */
static int open_file(const char *path, struct stat *status)
{
	struct open_how how;
	char name[REQUEST_MAX + 16];
	int file;

	memset(&how, 0, sizeof how);
	how.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
	how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
	while (*path == '/')
		path++;
	snprintf(name, sizeof name, "%s%s", *path != 0 ? path : "index.html",
	         *path != 0 && path[strlen(path) - 1] == '/' ? "index.html" : "");
	file = (int)syscall(SYS_openat2, root, name, &how, sizeof how);
	if (file >= 0 && (fstat(file, status) != 0 || !S_ISREG(status->st_mode))) {
		close(file);
		errno = ENOENT;
		return -1;
	}
	return file;
}

/* Whether a header of the request has this value; head ends with a zero. */
static bool has_header(const char *head, const char *name, const char *value)
{
	size_t length = strlen(name);

	for (const char *line = strstr(head, "\r\n"); line != NULL; line = strstr(line, "\r\n")) {
		line += 2;
		if (strncasecmp(line, name, length) == 0 && line[length] == ':') {
			const char *found = line + length + 1;
			found += strspn(found, " \t");
			return strncasecmp(found, value, strlen(value)) == 0;
		}
	}
	return false;
}

/* Starts the answer to one request, a head that ends with a zero. */
static void answer(struct client *c, char *head)
{
	char *method = head, *target = strchr(head, ' ');
	char *version = target != NULL ? strchr(target + 1, ' ') : NULL;
	struct stat status;
	bool get, old;

	if (version == NULL || version > strstr(head, "\r\n") || strncmp(version + 1, "HTTP/1.", 7) != 0) {
		c->last = true;
		answer_text(c, "400 Bad Request", true);
		return;
	}
	old = version[8] == '0';
	c->last = has_header(head, "Connection", "close") ||
	          (old && !has_header(head, "Connection", "keep-alive"));
	*target++ = 0;
	*version = 0;
	/* The headers are looked for before their line is cut. */
	get = strcmp(method, "GET") == 0;
	if (!get && strcmp(method, "HEAD") != 0) {
		/* A body would follow, which this server does not read. */
		c->last = true;
		answer_text(c, "405 Method Not Allowed", true);
		return;
	}
	if (!decode(target)) {
		answer_text(c, "400 Bad Request", get);
		return;
	}
	c->file = open_file(target, &status);
	if (c->file < 0) {
		answer_text(c, errno == EACCES ? "403 Forbidden" : "404 Not Found", get);
		return;
	}
	c->offset = 0;
	c->end = get ? status.st_size : 0;
	answer_head(c, "200 OK", content_type(target), status.st_size);
}

static void close_file(struct client *c)
{
	close(c->file);
	c->file = -1;
}

/* Ends a client; it is freed when no buffer of it is on its way and no event in hand points to it. */
static void end_client(struct client *c, unsigned flags)
{
	if (!c->gone) {
		c->gone = true;
		csp_end(c->connection, flags);
	}
	if (c->file >= 0)
		close_file(c);
	if (c->in_flight == 0 && !c->waiting && !c->dead) {
		c->dead = true;
		c->next_dead = dead;
		dead = c;
	}
}

static void bury(void)
{
	while (dead != NULL) {
		struct client *c = dead;
		dead = c->next_dead;
		free(c);
	}
}

/* Fills a buffer with what comes next; 0: nothing does, -1: the file ended early. */
static ssize_t fill(struct client *c, struct csp_buffer *buffer)
{
	size_t room = buffer->capacity - c->head_length;
	ssize_t got = 0;

	memcpy(buffer->data, c->head, c->head_length);
	if (c->file >= 0 && c->offset < c->end) {
		size_t wanted = (size_t)(c->end - c->offset) < room ? (size_t)(c->end - c->offset) : room;
		got = pread(c->file, (char *)buffer->data + c->head_length, wanted, c->offset);
		if (got <= 0)
			return -1;
		c->offset += got;
	}
	buffer->length = (uint32_t)(c->head_length + (size_t)got);
	c->head_length = 0;
	return (ssize_t)buffer->length;
}

/* Starts the answer to the next complete request; returns false if there is none. */
static bool next_request(struct client *c)
{
	char *end;
	size_t length;

	c->request[c->have] = 0;
	end = strstr(c->request, "\r\n\r\n");
	if (end == NULL) {
		if (c->have < REQUEST_MAX - 1)
			return false;
		c->last = true;
		answer_text(c, "431 Request Header Fields Too Large", true);
		return true;
	}
	length = (size_t)(end - c->request) + 4;
	end[2] = 0;
	answer(c, c->request);
	memmove(c->request, c->request + length, c->have - length);
	c->have -= length;
	return true;
}

/* Sends as much as window and pool allow, answer after answer. */
static void serve(struct client *c)
{
	while (!c->gone && c->in_flight < WINDOW && (busy(c) || next_request(c))) {
		struct csp_buffer buffer;

		if (csp_buffer_get(context, &buffer) != 0) {
			if (!c->waiting) {
				c->waiting = true;
				c->next_waiting = waiting;
				waiting = c;
			}
			return;
		}
		if (fill(c, &buffer) < 0 ||
		    csp_send(c->connection, &buffer, 0, 0, (uint64_t)(uintptr_t)c) != 0) {
			/* A file that shrank, or a client that is gone: the length was promised, so the stream breaks. */
			csp_buffer_release(&buffer);
			end_client(c, CSP_ABORT);
			return;
		}
		c->in_flight++;
		if (c->file >= 0 && c->offset == c->end)
			close_file(c);
		if (!busy(c) && c->last) {
			end_client(c, 0);
			return;
		}
	}
	if (!c->gone && c->peer_ended && !busy(c) && c->in_flight < WINDOW)
		end_client(c, 0);
}

static void serve_waiting(void)
{
	struct client *list = waiting;

	waiting = NULL;
	while (list != NULL) {
		struct client *c = list;
		list = c->next_waiting;
		c->waiting = false;
		if (c->gone)
			end_client(c, 0);
		else
			serve(c);
	}
}

static void accepted(csp_connection connection)
{
	struct client *c = calloc(1, sizeof *c);

	if (c == NULL) {
		csp_end(connection, CSP_ABORT);
		return;
	}
	c->connection = connection;
	c->file = -1;
	csp_set_user(connection, c);
}

static void received(struct client *c, const struct csp_buffer *buffer)
{
	size_t room = REQUEST_MAX - 1 - c->have;

	if (c->last || buffer->length > room) {
		/* More than this server reads ahead: a client that sends this much before reading is not served further. */
		csp_buffer_release(buffer);
		if (!c->last)
			end_client(c, CSP_ABORT);
		return;
	}
	memcpy(c->request + c->have, buffer->data, buffer->length);
	c->have += buffer->length;
	csp_buffer_release(buffer);
	serve(c);
}

static void handle(const struct csp_event *event)
{
	struct client *c = event->user;

	switch (event->type) {
	case CSP_ACCEPTED:
		accepted(event->accepted);
		break;
	case CSP_RECEIVED:
		if (c == NULL || c->gone)
			csp_buffer_release(&event->buffer);
		else
			received(c, &event->buffer);
		break;
	case CSP_SENT:
		csp_buffer_release(&event->buffer);
		c = (struct client *)(uintptr_t)event->tag;
		c->in_flight--;
		if (c->gone)
			end_client(c, 0);
		else
			serve(c);
		serve_waiting();
		break;
	case CSP_END:
		if (c != NULL && !c->gone) {
			c->peer_ended = true;
			serve(c);
		}
		break;
	case CSP_CLOSED:
		if (c != NULL && !c->gone)
			end_client(c, 0);
		break;
	default:
		break;
	}
}

static int start(const char *address, const char *folder)
{
	csp_listener listener;
	int error;

	root = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (root < 0) {
		perror(folder);
		return 1;
	}
	error = csp_open(&context, NULL);
	if (error == 0)
		error = csp_listen_stream(context, address, 512, NULL, &listener);
	if (error != 0) {
		fprintf(stderr, "http_server: %s: %s\n", address, csp_error_text(error));
		return 1;
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct csp_event events[64];

	if (argc != 3) {
		fprintf(stderr, "usage: %s ADDRESS:PORT FOLDER\n", argv[0]);
		return 64;
	}
	if (start(argv[1], argv[2]) != 0)
		return 1;
	signal(SIGTERM, stop);
	signal(SIGINT, stop);
	puts("listening");
	fflush(stdout);
	while (!stopping) {
		int count = csp_wait(context, events, 64, 1000);

		if (count < 0) {
			fprintf(stderr, "http_server: %s\n", csp_error_text(count));
			return 1;
		}
		for (int i = 0; i < count; i++)
			handle(&events[i]);
		bury();
	}
	csp_close(context);
	return 0;
}
