/* The results of poll and SO_ERROR for a reset connection. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    struct linger l = {1, 0};
    MUST(setsockopt(e.client, SOL_SOCKET, SO_LINGER, &l, sizeof l));
    close(e.client);
    struct pollfd p = {.fd = e.server, .events = POLLIN | POLLOUT | POLLRDHUP};
    do { MUST(poll(&p, 1, 5000)); } while (!(p.revents & POLLERR));
    say("%x", p.revents);
    int error = 0;
    socklen_t len = sizeof error;
    TRY(getsockopt(e.server, SOL_SOCKET, SO_ERROR, &error, &len));
    say("%s", strerrorname_np(error));
    TRY(getsockopt(e.server, SOL_SOCKET, SO_ERROR, &error, &len));
    say("%d", error);
    poll(&p, 1, 0);
    say("%x", p.revents);
    char b[4];
    TRY(read(e.server, b, 4));
    TRY(send(e.server, b, 4, MSG_NOSIGNAL));
}
