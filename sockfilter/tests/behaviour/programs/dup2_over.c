/* dup2 over a connection closes it. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends(), f = ends();
    char b[4];
    TRY(dup2(f.server, e.server) == e.server);
    TRY(read(e.client, b, 4));
    send(f.client, "x", 1, 0);
    TRY(read(e.server, b, 4));
    int n = MUST(open("/dev/null", O_RDWR));
    TRY(dup2(n, e.server) == e.server);
    TRY(read(e.server, b, 4));
    TRY(write(e.server, b, 4));
    TRY(send(e.server, b, 4, 0));
    TRY(close(f.server));
    TRY(read(f.client, b, 4));
}
