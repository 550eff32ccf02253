/* Every misuse that the manual names: it returns a code and has no other effect. */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static void null_pointers(csp_context context)
{
	struct csp_event event;
	uint64_t handle;
	GIVES(CSP_EINVAL, csp_open(NULL, NULL));
	GIVES(CSP_EINVAL, csp_poll(context, NULL, 1));
	GIVES(CSP_EINVAL, csp_poll(context, &event, -1));
	GIVES(0, csp_poll(context, NULL, 0));
	GIVES(CSP_EINVAL, csp_wait(context, NULL, 1, 0));
	GIVES(CSP_EINVAL, csp_buffer_get(context, NULL));
	GIVES(CSP_EINVAL, csp_buffer_release(NULL));
	GIVES(CSP_EINVAL, csp_listen_channel(context, NULL, 0, NULL, &handle));
	GIVES(CSP_EINVAL, csp_listen_channel(context, "a", 0, NULL, NULL));
	GIVES(CSP_EINVAL, csp_connect_channel(context, NULL, 0, NULL, &handle));
	GIVES(CSP_EINVAL, csp_connect_channel(context, "a", 0, NULL, NULL));
	GIVES(CSP_EINVAL, csp_listen_stream(context, NULL, 1, NULL, &handle));
	GIVES(CSP_EINVAL, csp_connect_stream(context, NULL, NULL, &handle));
	CHECK(csp_error_name(-9999) == NULL && csp_error_text(-9999) != NULL);
	CHECK(strcmp(csp_error_name(CSP_EFORK), "CSP_EFORK") == 0 && strcmp(csp_error_name(0), "CSP_OK") == 0);
}

static void wrong_options(void)
{
	csp_context context;
	struct csp_options options;
	memset(&options, 0, sizeof options);
	GIVES(CSP_EINVAL, csp_open(&context, &options)); /* size 0 */
	options.size = sizeof options;
	options.buffer_size = CSP_MESSAGE_MAX - 1;
	GIVES(CSP_EINVAL, csp_open(&context, &options));
	options.buffer_size = 0;
	options.send_buffers = 1;
	GIVES(CSP_EINVAL, csp_open(&context, &options));
	options.send_buffers = 0;
	options.connections = 131073;
	GIVES(CSP_EINVAL, csp_open(&context, &options));
	options.connections = 0;
	options.reserved = 1;
	GIVES(CSP_EINVAL, csp_open(&context, &options));
	options.reserved = 0;
	options.agent = "";
	GIVES(CSP_EINVAL, csp_open(&context, &options));
	options.agent = NULL;
	/* A program's name is a file name, and none is cut. */
	char name[257];
	memset(name, 'p', sizeof name);
	name[256] = 0;
	options.program = name;
	GIVES(CSP_EINVAL, csp_open(&context, &options));
	options.program = "";
	GIVES(CSP_EINVAL, csp_open(&context, &options));
	options.program = "/usr/sbin/php-fpm";
	GIVES(CSP_EINVAL, csp_open(&context, &options));
	options.program = name + 1;
	GIVES(0, csp_open(&context, &options));
	GIVES(0, csp_close(context));
	options.program = NULL;
	/* An older header's options are shorter; a newer one's are longer, and what is unknown must be 0. */
	options.size = 8;
	GIVES(0, csp_open(&context, &options));
	GIVES(0, csp_close(context));
	struct { struct csp_options known; uint32_t later[2]; } newer;
	memset(&newer, 0, sizeof newer);
	newer.known.size = sizeof newer;
	GIVES(0, csp_open(&context, &newer.known));
	GIVES(0, csp_close(context));
	newer.later[1] = 1;
	GIVES(CSP_EINVAL, csp_open(&context, &newer.known));
}

static void names_and_addresses(csp_context context)
{
	uint64_t handle;
	char longest[66];
	memset(longest, 'n', sizeof longest - 1);
	longest[sizeof longest - 1] = 0;
	const char *bad[] = { "", ".hidden", "a/b", "../a", "sp ace", longest };
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		GIVES(CSP_EINVAL, csp_listen_channel(context, bad[i], 0, NULL, &handle));
		GIVES(CSP_EINVAL, csp_connect_channel(context, bad[i], 0, NULL, &handle));
	}
	GIVES(CSP_EINVAL, csp_listen_channel(context, "a", 0x80, NULL, &handle));
	GIVES(0, csp_listen_channel(context, longest + 1, CSP_ANY_USER, NULL, &handle));
	GIVES(CSP_EADDRINUSE, csp_listen_channel(context, longest + 1, 0, NULL, &handle));
	/* There is no agent here. */
	GIVES(CSP_EINVAL, csp_connect_stream(context, "192.0.2.1:0", NULL, &handle));
	GIVES(CSP_EINVAL, csp_connect_stream(context, "example.org:80", NULL, &handle));
	GIVES(CSP_EINVAL, csp_connect_stream(context, ":65536", NULL, &handle));
	GIVES(CSP_EAGENT, csp_connect_stream(context, "192.0.2.1:80", NULL, &handle));
	GIVES(CSP_EAGENT, csp_listen_stream(context, "[::]:80", 1, NULL, &handle));
}

static void buffers(const struct pair *p)
{
	struct csp_buffer buffer = filled(p->client, "abc"), again = buffer;
	char *start = buffer.data;
	/* Outside of the buffer. */
	again.data = start - 1;
	GIVES(CSP_EINVAL, csp_send(p->at_client, &again, 0, 0, 0));
	again.data = start + buffer.capacity - 1;
	again.length = 2;
	GIVES(CSP_EINVAL, csp_send(p->at_client, &again, 0, 0, 0));
	again.data = start;
	again.length = UINT32_MAX;
	GIVES(CSP_EMSGSIZE, csp_send(p->at_client, &again, 0, 0, 0));
	/* Flags that do not exist, no buffer, another kind of handle, a buffer of another context. */
	GIVES(CSP_EINVAL, csp_send(p->at_client, &buffer, 0, 0x80, 0));
	GIVES(CSP_EINVAL, csp_send(p->at_client, NULL, 0, 0, 0));
	GIVES(CSP_EHANDLE, csp_send(p->listener, &buffer, 0, 0, 0));
	GIVES(CSP_EHANDLE, csp_send(p->client, &buffer, 0, 0, 0));
	GIVES(CSP_EHANDLE, csp_send(0, &buffer, 0, 0, 0));
	GIVES(CSP_ECONTEXT, csp_send(p->at_server, &buffer, 0, 0, 0));
	again = buffer;
	again.id = p->at_client;
	GIVES(CSP_EBUFFER, csp_send(p->at_client, &again, 0, 0, 0));
	GIVES(CSP_EHANDLE, csp_buffer_release(&again));
	/* After all that the program still holds it. Sent twice, and released after it was sent. */
	GIVES(0, csp_send(p->at_client, &buffer, 0, 0, 0));
	GIVES(CSP_EBUFFER, csp_send(p->at_client, &buffer, 0, 0, 0));
	GIVES(CSP_EBUFFER, csp_buffer_release(&buffer));
	struct csp_event sent = NEXT(p->client, CSP_SENT);
	GIVES(CSP_EBUFFER, csp_buffer_release(&buffer)); /* the former name */
	GIVES(0, csp_buffer_release(&sent.buffer));
	GIVES(CSP_EBUFFER, csp_buffer_release(&sent.buffer));
	struct csp_event got = NEXT(p->server, CSP_RECEIVED);
	GIVES(0, csp_buffer_release(&got.buffer));
	GIVES(CSP_EBUFFER, csp_buffer_release(&got.buffer));
	/* The pool's end. */
	struct csp_buffer all[300];
	int count = 0;
	while (csp_buffer_get(p->client, &all[count]) == 0)
		CHECK(++count < 300);
	CHECK(count == 256);
	GIVES(CSP_ENOBUFS, csp_buffer_get(p->client, &buffer));
	for (int i = 0; i < count; i++)
		GIVES(0, csp_buffer_release(&all[i]));
}

static void wrong_handles(const struct pair *p)
{
	char text[CSP_ADDRESS_MAX];
	struct csp_event event;
	GIVES(CSP_EHANDLE, csp_poll(p->at_client, &event, 1));
	GIVES(CSP_EHANDLE, csp_poll(0, &event, 1));
	GIVES(CSP_EHANDLE, csp_close(p->at_client));
	GIVES(CSP_EHANDLE, csp_close(UINT64_MAX));
	GIVES(CSP_EHANDLE, csp_end(p->client, 0));
	GIVES(CSP_EHANDLE, csp_end(p->at_client ^ 1, 0));
	GIVES(CSP_EHANDLE, csp_set_user(1, NULL));
	GIVES(CSP_EINVAL, csp_end(p->at_client, 0x80));
	GIVES(CSP_EINVAL, csp_end(p->listener, CSP_ABORT));
	/* What only streams have. */
	GIVES(CSP_EINVAL, csp_shutdown(p->at_client));
	GIVES(CSP_EINVAL, csp_address(p->at_client, CSP_LOCAL, text, sizeof text));
	GIVES(CSP_EINVAL, csp_address(p->at_client, CSP_LOCAL, NULL, 0));
}

/* After csp_close() every handle of the context names nothing, also when others take its place. */
static void after_close(void)
{
	struct pair p = pair_up(NULL, "gone", 0);
	struct csp_buffer buffer = filled(p.client, "x");
	struct csp_event event;
	close_pair(&p);
	csp_context others[CSP_CONTEXTS_MAX], more;
	int count = 0;
	while (csp_open(&more, NULL) == 0)
		others[count++] = more;
	CHECK(count > 0 && count <= CSP_CONTEXTS_MAX);
	GIVES(CSP_EMFILE, csp_open(&more, NULL));
	GIVES(CSP_EHANDLE, csp_close(p.client));
	GIVES(CSP_EHANDLE, csp_fd(p.client));
	GIVES(CSP_EHANDLE, csp_arm(p.client));
	GIVES(CSP_EHANDLE, csp_poll(p.client, &event, 1));
	GIVES(CSP_EHANDLE, csp_wait(p.client, &event, 1, 0));
	GIVES(CSP_EHANDLE, csp_send(p.at_client, &buffer, 0, 0, 0));
	GIVES(CSP_EHANDLE, csp_buffer_release(&buffer));
	GIVES(CSP_EHANDLE, csp_buffer_get(p.client, &buffer));
	GIVES(CSP_EHANDLE, csp_end(p.at_client, 0));
	GIVES(CSP_EHANDLE, csp_end(p.listener, 0));
	GIVES(CSP_EHANDLE, csp_set_user(p.listener, NULL));
	while (count > 0)
		GIVES(0, csp_close(others[--count]));
}

/* A child has nothing of its parent's contexts, may have its own, and does not disturb the parent's. */
static void a_forked_child(void)
{
	struct pair p = pair_up(NULL, "forked", 0);
	struct csp_buffer buffer = filled(p.client, "from the parent");
	fflush(NULL);
	pid_t child = fork();
	if (child == 0) {
		struct csp_event event;
		GIVES(CSP_EFORK, csp_poll(p.client, &event, 1));
		GIVES(CSP_EFORK, csp_send(p.at_client, &buffer, 0, 0, 0));
		GIVES(CSP_EFORK, csp_buffer_release(&buffer));
		GIVES(CSP_EFORK, csp_end(p.at_client, 0));
		GIVES(CSP_EFORK, csp_fd(p.client));
		GIVES(0, csp_close(p.client));
		GIVES(CSP_EHANDLE, csp_close(p.client));
		/* Its own, while the parent's other one is still there. */
		struct pair own = pair_up(NULL, "child", 0);
		GIVES(CSP_EFORK, csp_poll(p.server, &event, 1));
		close_pair(&own);
		GIVES(0, csp_close(p.server));
		_exit(0);
	}
	int status;
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	GIVES(0, csp_send(p.at_client, &buffer, 0, CSP_RELEASE, 0));
	CHECK(NEXT(p.server, CSP_RECEIVED).buffer.length == 15);
	close_pair(&p);
}

static void *wait_long(void *context)
{
	struct csp_event event;
	int count;
	while ((count = csp_wait(*(csp_context *)context, &event, 1, 10000)) == CSP_EBUSY)
		; /* the other thread is just asking */
	CHECK(count == 1 && event.type == CSP_RECEIVED);
	return NULL;
}

/* A second thread is refused, not kept waiting; another thread may go on where one has left. */
static void two_threads(void)
{
	struct pair p = pair_up(NULL, "threads", 0);
	settle(p.client, p.server);
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, wait_long, &p.server) == 0);
	int code;
	while ((code = csp_fd(p.server)) != CSP_EBUSY)
		CHECK(code >= 0);
	GIVES(CSP_EBUSY, csp_close(p.server));
	struct csp_buffer buffer = filled(p.client, "x");
	GIVES(0, csp_send(p.at_client, &buffer, 0, CSP_RELEASE, 0));
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(csp_fd(p.server) >= 0);
	close_pair(&p);
}

int main(void)
{
	struct pair p = pair_up(NULL, "misuse", 0);
	null_pointers(p.client);
	wrong_options();
	names_and_addresses(p.client);
	buffers(&p);
	wrong_handles(&p);
	close_pair(&p);
	after_close();
	a_forked_child();
	two_threads();
	puts("misuse: good");
	return 0;
}
