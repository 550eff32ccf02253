/* Lists of buffers: empty ones among them, none, too many. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    char a[4] = {0}, b[8] = {0};
    struct iovec out[] = {{"ab", 2}, {NULL, 0}, {"cdef", 4}, {"g", 1}};
    TRY(writev(e.client, out, 4));
    arrived(e.server, 7);
    struct iovec in[] = {{a, 3}, {NULL, 0}, {b, 8}};
    TRY(readv(e.server, in, 3));
    say("%s %s", a, b);
    TRY(writev(e.client, out, 0));
    TRY(readv(e.server, in, 0));
    TRY(writev(e.client, out, -1));
    TRY(readv(e.server, in, -1));
    TRY(writev(e.client, out, 1025));
    TRY(readv(e.server, in, 1025));
    static struct iovec many[1024];
    for (int i = 0; i < 1024; i++) many[i] = (struct iovec){"1234567", 7};
    TRY(writev(e.client, many, 1024));
    arrived(e.server, 7168);
    static char sink[8000];
    TRY(recv(e.server, sink, sizeof sink, MSG_WAITALL | MSG_DONTWAIT));
    struct iovec negative[] = {{b, 4}, {b, (size_t)-1}};
    TRY(readv(e.server, negative, 2));
}
