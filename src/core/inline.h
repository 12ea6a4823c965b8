// Functions of headers that run on GPUs, too.
#ifndef QN_CORE_INLINE_H
#define QN_CORE_INLINE_H

#ifdef __CUDACC__
#define QN_ANYWHERE static __host__ __device__ inline
#else
#define QN_ANYWHERE static inline
#endif

#endif
