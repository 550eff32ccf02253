/* select over sockets and pipes, and with descriptors that became free and others. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    int p[2];
    MUST(pipe(p));
    fd_set r, w;
    FD_ZERO(&r);
    FD_ZERO(&w);
    FD_SET(e.server, &r);
    FD_SET(p[0], &r);
    FD_SET(p[1], &w);
    TRY(select(p[1] + 1, &r, &w, NULL, NULL));
    say("%d", FD_ISSET(p[1], &w) != 0);
    write(p[1], "x", 1);
    send(e.client, "x", 1, 0);
    arrived(e.server, 1);
    FD_SET(e.server, &r);
    FD_SET(p[0], &r);
    TRY(select(p[1] + 1, &r, NULL, NULL, NULL));
    say("%d %d", FD_ISSET(e.server, &r) != 0, FD_ISSET(p[0], &r) != 0);
}
