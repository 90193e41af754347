// What combines the lanes of a vector, for sets of instructions without an instruction for it.
// Sums are in a fixed order: halves are added to halves.

INLINE float sum_of(vf a) {
    float lanes[W];
    store(lanes, a);
    for (int step = W / 2; step; step /= 2)
        for (int i = 0; i < step; i++) lanes[i] += lanes[i + step];
    return lanes[0];
}

INLINE float max_of(vf a) {  // of numbers
    float lanes[W];
    store(lanes, a);
    for (int step = W / 2; step; step /= 2)
        for (int i = 0; i < step; i++) lanes[i] = lanes[i] > lanes[i + step] ? lanes[i] : lanes[i + step];
    return lanes[0];
}

INLINE int32_t total_of(vi a) {
    int32_t lanes[W], total = 0;
    memcpy(lanes, &a, sizeof lanes);
    for (int i = 0; i < W; i++) total += lanes[i];
    return total;
}

INLINE void store_bytes(int8_t *to, vi a) {  // the low byte of each lane
    int32_t lanes[W];
    memcpy(lanes, &a, sizeof lanes);
    for (int i = 0; i < W; i++) to[i] = (int8_t)lanes[i];
}
