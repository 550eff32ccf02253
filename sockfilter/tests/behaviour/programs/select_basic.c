/* select's three sets, its count, and a set of none. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    fd_set r, w, x;
    FD_ZERO(&r);
    FD_ZERO(&w);
    FD_ZERO(&x);
    FD_SET(e.server, &r);
    FD_SET(e.server, &w);
    FD_SET(e.server, &x);
    struct timeval zero = {0, 0};
    TRY(select(e.server + 1, &r, &w, &x, &zero));
    say("%d %d %d", FD_ISSET(e.server, &r) != 0, FD_ISSET(e.server, &w) != 0, FD_ISSET(e.server, &x) != 0);
    send(e.client, "x", 1, 0);
    arrived(e.server, 1);
    FD_SET(e.server, &r);
    FD_SET(e.client, &r);
    TRY(select(e.server + 1, &r, &w, NULL, NULL));
    say("%d %d", FD_ISSET(e.server, &r) != 0, FD_ISSET(e.client, &r) != 0);
    shutdown(e.client, SHUT_WR);
    char b;
    read(e.server, &b, 1);
    FD_SET(e.server, &r);
    TRY(select(e.server + 1, &r, NULL, NULL, NULL));
    TRY(select(0, NULL, NULL, NULL, &zero));
    TRY(select(-1, NULL, NULL, NULL, &zero));
}
