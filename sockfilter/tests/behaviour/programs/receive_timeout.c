/* SO_RCVTIMEO ends recv and accept with EAGAIN in time. */
#include "behaviour.h"

int main(void) {
    int s = listener();
    struct ends e = ends_at(s);
    struct timeval t = {0, 60000}, none = {0, 0};
    char b[8];
    TRY(setsockopt(e.server, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    double since = seconds();
    TRY(recv(e.server, b, 4, 0));
    say("%s", took(since, 0.06));
    send(e.client, "ab", 2, 0);
    since = seconds();
    TRY(recv(e.server, b, 4, MSG_WAITALL));
    say("%s", took(since, 0.06));
    TRY(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    since = seconds();
    TRY(accept(s, NULL, NULL));
    say("%s", took(since, 0.06));
    t = (struct timeval){0, 1000000};
    TRY(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    t = (struct timeval){-1, 0};
    TRY(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    TRY(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &none, 3));
    TRY(setsockopt(e.server, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none));
    socklen_t len = sizeof t;
    TRY(getsockopt(e.server, SOL_SOCKET, SO_RCVTIMEO, &t, &len));
    say("%ld.%06ld", (long)t.tv_sec, (long)t.tv_usec);
    TRY(recv(e.server, b, 4, MSG_DONTWAIT));
}
