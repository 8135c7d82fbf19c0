# A foreign image with a shell and no Python. The context holds a static `busybox` and nothing else.
FROM scratch
COPY busybox /bin/busybox
RUN ["/bin/busybox", "--install", "-s", "/bin"]
ENV PATH=/bin HOME=/tmp
USER 65532:65532
CMD ["/bin/sh"]
