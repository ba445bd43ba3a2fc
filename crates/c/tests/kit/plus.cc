// The header in C++.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <directfs.h>

int main()
{
    directfs_image *image = directfs_image_in_memory(16 << 20);
    struct stat status;
    if (image == nullptr || directfs_stat(image, "missing", &status) != -1)
        return 1;
    std::printf("%s %s\n", directfs_version(), std::strerror(errno));
    return directfs_image_close(image);
}
