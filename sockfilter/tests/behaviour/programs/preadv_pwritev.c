/* Positions make no sense on sockets; preadv2 and pwritev2 without one read and write. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    char b[16] = {0};
    struct iovec in = {b, 16}, out = {"data", 4};
    TRY(pread(e.server, b, 1, 0));
    TRY(pwrite(e.client, "x", 1, 0));
    TRY(preadv(e.server, &in, 1, 0));
    TRY(pwritev(e.client, &out, 1, 0));
    TRY(preadv2(e.server, &in, 1, 5, 0));
    TRY(pwritev2(e.client, &out, 1, 5, 0));
    TRY(preadv2(e.server, &in, 1, -1, RWF_NOWAIT));
    TRY(pwritev2(e.client, &out, 1, -1, 0));
    arrived(e.server, 4);
    TRY(preadv2(e.server, &in, 1, -1, 0));
    say("%s", b);
    TRY(pwritev2(e.client, &out, 1, -1, RWF_NOWAIT));
    TRY(preadv2(e.server, &in, 1, -1, 0x4000));
}
