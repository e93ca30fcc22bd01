// The ISAs of this architecture, best first, from which each operator makes its array of variants. cmake/isa.cmake says
// which kernel files are compiled; the two lists agree.
//
// PAIRS(isa, wide): multiplies pairs of bf16, and takes nothing else; `wide` is the ISA that it adds this to.
// WIDE(isa): multiplies f32, and takes every type.
#ifndef TESSERA_OPS_ISAS_H_
#define TESSERA_OPS_ISAS_H_

#if defined(__x86_64__)
#define TESSERA_ISAS(PAIRS, WIDE) PAIRS(avx512bf16, avx512) WIDE(avx512) WIDE(avx2) WIDE(scalar)
#elif defined(__aarch64__)
#define TESSERA_ISAS(PAIRS, WIDE) PAIRS(neonbf16, neon) WIDE(neon) WIDE(scalar)
#else
#define TESSERA_ISAS(PAIRS, WIDE) WIDE(scalar)
#endif

// For operators that have nothing to multiply in pairs.
#define TESSERA_NO_PAIRS(isa, wide)

// Declarations of an operator's kernels, and their entries in its array.
#define TESSERA_PAIR_KERNELS(isa, wide) extern const Kernel isa##_bf16;
#define TESSERA_KERNELS(isa) extern const Kernel isa##_bf16, isa##_f16, isa##_f32;
#define TESSERA_PAIR_VARIANT(isa, wide) {#isa, &isa##_bf16, nullptr, nullptr},
#define TESSERA_VARIANT(isa) {#isa, &isa##_bf16, &isa##_f16, &isa##_f32},
#define TESSERA_MIXING_VARIANT(isa) {#isa, &isa##_bf16, &isa##_f16, &isa##_f32, true},

#endif  // TESSERA_OPS_ISAS_H_
