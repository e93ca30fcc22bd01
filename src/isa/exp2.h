// Coefficients of 2^f on [-1/2, 1/2], constant term 1 so that 2^0 is exact, lowest power first. Fitted for the smallest
// largest relative error: 2.9e-6 (degree 4, when probabilities are rounded to bf16 or f16 accuracy anyway) and 1.9e-7
// in f32 arithmetic (degree 5).
#ifndef TESSERA_ISA_EXP2_H_
#define TESSERA_ISA_EXP2_H_

namespace tessera {

template <bool kExact>
struct Exp2Poly {
  static constexpr int kDegree = 4;
  static constexpr float kC[5] = {1.0f, 0.693124175f, 0.240240991f, 0.0559064262f, 0.00958285294f};
};

template <>
struct Exp2Poly<true> {
  static constexpr int kDegree = 5;
  static constexpr float kC[6] = {1.0f, 0.693147004f, 0.240222424f, 0.0555073358f, 0.00967151299f, 0.00132647273f};
};

}  // namespace tessera

#endif  // TESSERA_ISA_EXP2_H_
