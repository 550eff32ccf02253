/* SO_LINGER: its value, and a reset at time 0. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    struct linger l = {9, 9};
    socklen_t len = sizeof l;
    char b[4];
    TRY(getsockopt(e.client, SOL_SOCKET, SO_LINGER, &l, &len));
    say("%d", l.l_onoff);
    l = (struct linger){1, 5};
    TRY(setsockopt(e.client, SOL_SOCKET, SO_LINGER, &l, sizeof l));
    send(e.client, "last", 4, 0);
    TRY(close(e.client));
    TRY(recv(e.server, b, 4, MSG_WAITALL));
    TRY(recv(e.server, b, 4, 0));
    e = ends();
    l = (struct linger){1, 0};
    TRY(setsockopt(e.client, SOL_SOCKET, SO_LINGER, &l, sizeof l));
    TRY(close(e.client));
    TRY(recv(e.server, b, 4, 0));
    TRY(recv(e.server, b, 4, 0));
    TRY(send(e.server, b, 4, MSG_NOSIGNAL));
    TRY(setsockopt(e.server, SOL_SOCKET, SO_LINGER, &l, 4));
}
