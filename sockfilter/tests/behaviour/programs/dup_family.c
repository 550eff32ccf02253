/* dup, dup2, dup3, F_DUPFD: numbers, flags, one connection. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    char b[8] = {0};
    int d = dup(e.server), f = fcntl(e.server, F_DUPFD, 50), g = fcntl(e.server, F_DUPFD_CLOEXEC, 50);
    say("%d %d %d", d, f, g);
    TRY(dup2(e.server, 60));
    TRY(dup2(e.server, e.server));
    TRY(dup3(e.server, 61, O_CLOEXEC));
    TRY(dup3(e.server, e.server, 0));
    TRY(dup3(e.server, 62, 0x10));
    TRY(dup2(999, 63));
    TRY(dup(-1));
    say("%d %d %d %d", fcntl(f, F_GETFD), fcntl(g, F_GETFD), fcntl(60, F_GETFD), fcntl(61, F_GETFD));
    TRY(close(e.server));
    send(e.client, "abc", 3, 0);
    TRY(read(d, b, 1));
    TRY(read(60, b, 1));
    TRY(write(61, "back", 4));
    TRY(recv(e.client, b, 8, 0));
    int all[] = {d, f, g, 60, 61};
    for (int i = 0; i < 5; i++) close(all[i]);
    /* A byte was not read. */
    TRY(recv(e.client, b, 8, 0));
}
