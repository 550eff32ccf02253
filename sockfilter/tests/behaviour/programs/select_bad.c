/* A descriptor that is closed makes select fail. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    fd_set r, w;
    FD_ZERO(&r);
    FD_ZERO(&w);
    FD_SET(e.server, &r);
    FD_SET(e.client, &w);
    close(e.client);
    TRY(select(e.server + e.client, &r, &w, NULL, NULL));
    say("%d %d", FD_ISSET(e.server, &r) != 0, FD_ISSET(e.client, &w) != 0);
}
