/* What files can and sockets cannot. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    struct stat s;
    TRY(fstat(e.server, &s));
    say("%d", S_ISSOCK(s.st_mode));
    TRY(lseek(e.server, 0, SEEK_SET));
    TRY(ftruncate(e.server, 0));
    TRY(fsync(e.server));
    TRY(mmap(NULL, 4096, PROT_READ, MAP_SHARED, e.server, 0) == MAP_FAILED);
    TRY(isatty(e.server));
    TRY(posix_fadvise(e.server, 0, 0, POSIX_FADV_NORMAL));
    TRY(fchdir(e.server));
}
