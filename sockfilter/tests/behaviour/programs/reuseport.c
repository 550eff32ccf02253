/* Listeners with SO_REUSEPORT share a port; without it it is taken. */
#include "behaviour.h"

int main(void) {
    int one = 1, s = MUST(socket(AF_INET, SOCK_STREAM, 0)), t = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(setsockopt(s, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one));
    MUST(setsockopt(t, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one));
    struct sockaddr_in a = here(0);
    MUST(bind(s, (struct sockaddr *)&a, sizeof a));
    MUST(listen(s, 16));
    a = where(s);
    TRY(bind(t, (struct sockaddr *)&a, sizeof a));
    TRY(listen(t, 16));
    nonblocking(s);
    nonblocking(t);
    int total = 0;
    for (int i = 0; i < 20; i++) {
        int c = dial(s);
        struct pollfd p[] = {{s, POLLIN}, {t, POLLIN}};
        MUST(poll(p, 2, 5000));
        for (int j = 0; j < 2; j++) {
            int n;
            while ((n = accept(p[j].fd, NULL, NULL)) >= 0) close(n), total++;
        }
        close(c);
    }
    say("%d", total);
    int u = MUST(socket(AF_INET, SOCK_STREAM, 0));
    TRY(bind(u, (struct sockaddr *)&a, sizeof a));
    close(t);
    int c = dial(s);
    struct pollfd p = {s, POLLIN};
    TRY(poll(&p, 1, 5000));
}
