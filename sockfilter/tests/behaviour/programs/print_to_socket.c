/* The C library prints to a connection and makes a stream of it; the same calls by the names that only libraries use. */
#include "behaviour.h"

extern ssize_t __read(int, void *, size_t), __write(int, const void *, size_t), __send(int, const void *, size_t, int);
extern int __poll(struct pollfd *, nfds_t, int), __close(int), __dup2(int, int);

static void printed(int fd, const char *format, ...) {
    va_list list;
    va_start(list, format);
    TRY(vdprintf(fd, format, list));
    va_end(list);
}

int main(void) {
    struct ends e = ends();
    char buffer[100] = "";
    TRY(__write(e.client, "one ", 4));
    TRY(__send(e.client, "two ", 4, 0));
    arrived(e.server, 8);
    struct pollfd p = {.fd = e.server, .events = POLLIN};
    TRY(__poll(&p, 1, 10000));
    TRY(__read(e.server, buffer, 4));
    TRY(dprintf(e.client, "%s %d %.3f %g", "three", 3, 3.125, 1e10));
    printed(e.client, "; %d %s %.1f", 4, "four", 4.5);
    long want = strlen("two three 3 3.125 1e+10; 4 four 4.5");
    TRY(recv(e.server, buffer, want, MSG_WAITALL) == want);
    say("%s", buffer);
    TRY(__dup2(e.server, 100));
    TRY(__close(e.server));
    TRY(dprintf(100, "back"));
    memset(buffer, 0, sizeof buffer);
    TRY(recv(e.client, buffer, 4, MSG_WAITALL));
    say("%s", buffer);
    TRY(__close(100));
    TRY(recv(e.client, buffer, 1, 0));
}
