/* splice from a pipe into a socket. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    int p[2];
    char b[16] = {0};
    MUST(pipe(p));
    MUST(write(p[1], "abcdef", 6));
    TRY(splice(p[0], NULL, e.client, NULL, 4, 0));
    TRY(splice(p[0], NULL, e.client, NULL, 100, SPLICE_F_MORE));
    arrived(e.server, 6);
    TRY(recv(e.server, b, 16, 0));
    say("%s", b);
    TRY(splice(p[0], NULL, e.client, NULL, 4, SPLICE_F_NONBLOCK));
    close(p[1]);
    TRY(splice(p[0], NULL, e.client, NULL, 4, 0));
    MUST(pipe(p));
    MUST(write(p[1], "abcdef", 6));
    signal(SIGPIPE, SIG_IGN);
    shutdown(e.client, SHUT_WR);
    TRY(splice(p[0], NULL, e.client, NULL, 4, 0));
}
