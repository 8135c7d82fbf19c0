# A user's image of the usual careless kind, for the end-to-end tests: root is its user, HOME is root's, the program's folder is
# root's and partly for root's eyes only. It has to train as anybody all the same.
ARG BASE
FROM ${BASE}
ENV HOME=/root
RUN chmod 0700 /root && mkdir -m 0755 /app && mkdir -m 0700 /app/private && touch /app/private/notes \
    && echo 'print("the image has its own train.py")' >/app/train.py
WORKDIR /app
USER root
CMD ["python3", "train.py"]
