/* What sendfile refuses. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    int f = MUST(memfd_create("file", 0)), p[2];
    MUST(write(f, "abc", 3));
    MUST(pipe(p));
    TRY(sendfile(e.client, e.server, NULL, 1));
    TRY(sendfile(f, e.server, NULL, 1));
    TRY(sendfile(e.client, 999, NULL, 1));
    TRY(sendfile(999, f, NULL, 1));
    off_t at = 0;
    TRY(sendfile(e.client, p[0], &at, 1));
    int w = MUST(open("/tmp", O_RDONLY));
    TRY(sendfile(e.client, w, NULL, 1) == -1);
    nonblocking(e.client);
    say("filled %d", fill(e.client) > 100000);
    do { at = 0; } while (sendfile(e.client, f, &at, 3) > 0);
    say("%s, offset %ld", strerrorname_np(errno), (long)at);
    signal(SIGPIPE, SIG_IGN);
    struct ends g = ends();
    shutdown(g.client, SHUT_WR);
    at = 3;
    TRY(sendfile(g.client, f, &at, 3));
    at = 0;
    TRY(sendfile(g.client, f, &at, 3));
    at = 0;
    int s = socket(AF_INET, SOCK_STREAM, 0);
    TRY(sendfile(s, f, &at, 3));
}
