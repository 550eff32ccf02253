/* What a server writes before it closes arrives before the reset, and the end of the stream if it has shut down: in every order of
 * write, shutdown, SO_LINGER 0, bytes that it did not read, and close. */
#include "behaviour.h"

enum { NONE = -1 };

static void closes(struct ends e, int shut, int linger, int unread, int size) {
    static char words[100000];
    struct linger zero = {1, 0};
    char b[4], request[4];
    int error = 0, n, got = 0;
    socklen_t len = sizeof error;
    say("shutdown %d, linger 0: %d, unread %d, %d bytes", shut, linger, unread, size);
    if (unread) {
        send(e.client, "request", 7, 0);
        arrived(e.server, 7);
        recv(e.server, request, 2, 0);
    }
    MUST(send(e.server, words, size, 0));
    if (shut != NONE) TRY(shutdown(e.server, shut));
    if (linger) MUST(setsockopt(e.server, SOL_SOCKET, SO_LINGER, &zero, sizeof zero));
    TRY(close(e.server));
    int resets = linger || unread, awaited = resets ? POLLHUP : POLLRDHUP;
    while (!(await(e.client, POLLRDHUP) & awaited)) usleep(1000);
    say("hung up %d", !!(await(e.client, POLLIN) & POLLHUP));
    while (got < size && (n = recv(e.client, words, size - got, 0)) > 0) got += n;
    say("%d bytes", got);
    TRY(recv(e.client, b, 4, 0));
    TRY(recv(e.client, b, 4, 0));
    TRY(getsockopt(e.client, SOL_SOCKET, SO_ERROR, &error, &len));
    say("%s", error ? strerrorname_np(error) : "none");
    if (resets) TRY(send(e.client, b, 4, MSG_NOSIGNAL));
    close(e.client);
}

int main(void) {
    int sizes[] = {6, 30000};
    for (int i = 0; i < 2; i++)
        for (int shut = NONE; shut <= SHUT_RDWR; shut++)
            for (int linger = 0; linger < 2; linger++)
                for (int unread = 0; unread < 2; unread++) closes(ends(), shut, linger, unread, sizes[i]);
    /* A reset behind the end of the stream is EPIPE for writing, and no error for reading. */
    struct ends e = ends();
    send(e.client, "x", 1, 0);
    arrived(e.server, 1);
    shutdown(e.server, SHUT_WR);
    close(e.server);
    while (!(await(e.client, POLLRDHUP) & POLLHUP)) usleep(1000);
    char b[4];
    TRY(recv(e.client, b, 4, 0));
    TRY(send(e.client, b, 4, MSG_NOSIGNAL));
    TRY(recv(e.client, b, 4, 0));
}
