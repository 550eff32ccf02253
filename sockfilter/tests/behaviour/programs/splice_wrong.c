/* What splice, tee, vmsplice and copy_file_range refuse of sockets. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    int p[2], f = MUST(memfd_create("file", 0));
    loff_t at = 0;
    MUST(pipe(p));
    MUST(write(p[1], "abc", 3));
    TRY(splice(e.client, NULL, e.server, NULL, 10, 0));
    TRY(splice(e.server, NULL, f, NULL, 10, 0));
    TRY(splice(p[0], NULL, e.client, &at, 10, 0));
    TRY(splice(e.server, &at, p[1], NULL, 10, 0));
    TRY(splice(p[0], &at, e.client, NULL, 10, 0));
    TRY(splice(p[0], NULL, e.client, NULL, 10, 0x100));
    TRY(splice(p[0], NULL, 999, NULL, 10, 0));
    TRY(tee(e.server, p[1], 10, 0));
    TRY(tee(p[0], e.client, 10, 0));
    struct iovec v = {"x", 1};
    TRY(vmsplice(e.client, &v, 1, 0));
    TRY(copy_file_range(e.server, NULL, f, NULL, 10, 0));
    TRY(copy_file_range(f, NULL, e.client, NULL, 10, 0));
    /* The writing end of a pipe cannot be read from. */
    TRY(splice(p[1], NULL, e.client, NULL, 10, 0));
    TRY(splice(e.server, NULL, p[0], NULL, 10, 0));
}
