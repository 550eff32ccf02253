/* splice from a socket into a pipe. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    int p[2];
    char b[16] = {0};
    MUST(pipe(p));
    nonblocking(e.server);
    TRY(splice(e.server, NULL, p[1], NULL, 10, 0));
    MUST(fcntl(e.server, F_SETFL, O_RDWR));
    send(e.client, "abcdef", 6, 0);
    arrived(e.server, 6);
    TRY(splice(e.server, NULL, p[1], NULL, 4, 0));
    TRY(splice(e.server, NULL, p[1], NULL, 100, 0));
    TRY(read(p[0], b, 16));
    say("%s", b);
    shutdown(e.client, SHUT_WR);
    TRY(splice(e.server, NULL, p[1], NULL, 100, 0));
    TRY(splice(e.server, NULL, p[1], NULL, 0, 0));
}
