// Bessel's functions and Airy's, in double for float32 as well. Only math_special.h includes this.

// e^-x I(x) on [0, 8], of I1 divided by x; beyond times sqrt(x), by 1 / x.
MOTH_FN double m_i0_small_(double t) {
  const double c[29] = {
      0.33839763720473803,     -0.3046826723431984,     0.17162090152220877,
      -0.094901097048047639,   0.049305284239670712,    -0.023737414805899471,
      0.010546460394594998,    -0.0043243099950505759,  0.0016394756169413357,
      -0.00057637557453858236, 0.00018850288509584165,  -5.754195010082104e-05,
      1.6448448070728896e-05,  -4.4167383584587505e-06, 1.1173875391201037e-06,
      -2.6707938539406119e-07, 6.0469950225419186e-08,  -1.300025009986248e-08,
      2.6598237246823866e-09,  -5.1897956016352627e-10, 9.675809035373237e-11,
      -1.7268262914415559e-11, 2.9550526631296399e-12,  -4.856446783111929e-13,
      7.6761854986049361e-14,  -1.1685332877993451e-14, 1.7153912855551331e-15,
      -2.4312798465479549e-16, 3.3307945188222384e-17,
  };
  return m_chebyshev_(c, 29, 22, t);
}
MOTH_FN double m_i0_large_(double t) {
  const double c[25] = {
      0.40224520550705439,     0.0033691164782556943,   6.8897583469168245e-05,
      2.8913705208347567e-06,  2.0489185894690638e-07,  2.266668990498178e-08,
      3.3962320257083865e-09,  4.9406023882249701e-10,  1.1889147107846439e-11,
      -3.1499165279632416e-11, -1.3215811840447713e-11, -1.7941785315068062e-12,
      7.180124451383666e-13,   3.8527783827421426e-13,  1.54008621752141e-14,
      -4.1505693472872222e-14, -9.5548466988283073e-15, 3.8116806693526224e-15,
      1.7725601330565263e-15,  -3.425485619677219e-16,  -2.8276239805165836e-16,
      3.4612228676974612e-17,  4.4656214202967598e-17,  -4.8305044859441819e-18,
      -7.2331804878747538e-18,
  };
  return m_chebyshev_(c, 25, 10, t);
}
MOTH_FN double m_i1_small_(double t) {
  const double c[29] = {
      0.12629359322181682,     -0.17641651835783406,    0.10264365868984709,
      -0.052945981208094989,   0.024726449030626516,    -0.010564084894626197,
      0.0041564229443128882,   -0.0015135724506312532,  0.00051228595616857576,
      -0.00016176081582589674, 4.7815651075500542e-05,  -1.3273163656039436e-05,
      3.4702513081376785e-06,  -8.5687202646954547e-07, 2.0032947535521353e-07,
      -4.4450591287963281e-08, 9.3815373864957726e-09,  -1.8872497517228294e-09,
      3.6255902815521172e-10,  -6.6634897235020271e-11, 1.1736186298890901e-11,
      -1.9839743977649436e-12, 3.2237933659455748e-13,  -5.0421855047279118e-14,
      7.6006842947354077e-15,  -1.1055969477353862e-15, 1.5536319577362005e-16,
      -2.111421214358166e-17,  2.7779141127610464e-18,
  };
  return m_chebyshev_(c, 29, 22, t);
}
MOTH_FN double m_i1_large_(double t) {
  const double c[25] = {
      0.38928811750914005,     -0.0097610974913614687,  -0.00011058893876262371,
      -3.8825648088776906e-06, -2.5122362378702088e-07, -2.6314688468895196e-08,
      -3.835380385964237e-09,  -5.5897434621965838e-10, -1.8974958123505413e-11,
      3.2526035830154884e-11,  1.4125807436613782e-11,  2.0356285441470896e-12,
      -7.1985517762459084e-13, -4.0835511110921974e-13, -2.1015418427726643e-14,
      4.272440016711951e-14,   1.0420276984128802e-14,  -3.8144030724370075e-15,
      -1.8803547755107825e-15, 3.3082023109209285e-16,  2.9626289976459501e-16,
      -3.2095259219934238e-17, -4.6503053684893586e-17, 4.4143483230717077e-18,
      7.5172963108421052e-18,
  };
  return m_chebyshev_(c, 25, 10, t);
}
MOTH_FN double m_i0e_of_(double a) {
  return a == 0   ? 1
         : a <= 8 ? m_i0_small_(a * 0.25 - 1)
                  : m_i0_large_(16 / a - 1) / moth_libm_sqrt(a);
}
MOTH_FN double m_i1e_of_(double a) {
  return a <= 8 ? m_i1_small_(a * 0.25 - 1) * a : m_i1_large_(16 / a - 1) / moth_libm_sqrt(a);
}
MOTH_FN real m_i0e(real x) {
  return (real)m_i0e_of_((double)m_abs(x));
}
MOTH_FN real m_i0(real x) {
  double a = (double)m_abs(x),
         half = m_wide_exp_(0.5 * a); // in two parts: e^a may be Inf where I0 is not
  return a > 1500 ? m_inf() : (real)(m_i0e_of_(a) * half * half);
}
MOTH_FN real m_i1e(real x) {
  double y = m_i1e_of_((double)m_abs(x));
  return (real)(x < 0 ? -y : y);
}
MOTH_FN real m_i1(real x) {
  double a = (double)m_abs(x), half = m_wide_exp_(0.5 * a);
  double y = a > 1500 ? (double)m_inf() : m_i1e_of_(a) * half * half;
  return (real)(x < 0 ? -y : y);
}
// K(x) + log(x / 2) I0(x), and (K(x) - log(x / 2) I1(x)) x by x^2 up to 2; beyond e^x sqrt(x) K(x) by 1 / x.
MOTH_FN double m_k0_small_(double t) {
  const double c[10] = {
      -0.26766369661695139,   0.3442898999246285,     0.035979936515361501,
      0.001264615411446926,   2.2862121031194519e-05, 2.5347910790261494e-07,
      1.9045163772202091e-09, 1.0349695257633625e-11, 4.2598161427910826e-14,
      1.3744654358807508e-16,
  };
  return m_chebyshev_(c, 10, 8, t);
}
MOTH_FN double m_k0_large_(double t) {
  const double c[24] = {
      1.2201515410329777,      -0.031448101311964502,   0.0015698838857300533,
      -0.00012849549581627802, 1.39498137188765e-05,    -1.8317555227191195e-06,
      2.7668136394450149e-07,  -4.6604898976879478e-08, 8.5740340174142253e-09,
      -1.6975345093890614e-09, 3.5773972814003283e-10,  -7.9574892444773965e-11,
      1.8559491149549264e-11,  -4.5145978833745193e-12, 1.1403405882073441e-12,
      -2.9800969231481784e-13, 8.0328907750683746e-14,  -2.2275133267462965e-14,
      6.3400764762766461e-15,  -1.8485933779209071e-15, 5.5120559994043335e-16,
      -1.6782311257549006e-16, 5.2103917776435543e-17,  -1.6475805939842632e-17,
  };
  return m_chebyshev_(c, 24, 12, t);
}
MOTH_FN double m_k1_small_(double t) {
  const double c[11] = {
      0.76265011366947388,    -0.35315596077654487,    -0.12261118082265715,
      -0.0069757238596398641, -0.0001730288957513052,  -2.4334061415659684e-06,
      -2.213387630734726e-08, -1.4114883926335278e-10, -6.6669016941993295e-13,
      -2.427449850519366e-15, -7.0238634793862882e-18,
  };
  return m_chebyshev_(c, 11, 8, t);
}
MOTH_FN double m_k1_large_(double t) {
  const double c[24] = {
      1.3603130952422213,      0.10392373657681724,     -0.0028578168596227792,
      0.00019521551847135162,  -1.936197974166083e-05,  2.406484947837217e-06,
      -3.5019606030878126e-07, 5.7410841254500495e-08,  -1.0345762465678097e-08,
      2.0150497551970347e-09,  -4.1903547593419254e-10, 9.2183151876053146e-11,
      -2.1299678384277909e-11, 5.1396396734823432e-12,  -1.2891739609498229e-12,
      3.3484196660522431e-13,  -8.9767051820101463e-14, 2.4771544242195988e-14,
      -7.0198370892147685e-15, 2.038703166239861e-15,   -6.0570472706430177e-16,
      1.8380935752430455e-16,  -5.6894628491936484e-17, 1.7940510478863572e-17,
  };
  return m_chebyshev_(c, 24, 12, t);
}
// e^x K0(x), e^x K1(x): NaN for x < 0, Inf at 0.
MOTH_FN double m_k0e_of_(double x) {
  double a = x < 2 ? x : 2, e = m_wide_exp_(a), i = e * m_i0_small_(a * 0.25 - 1);
  double low = e * (m_k0_small_(a * a * 0.5 - 1) - m_wide_log_of_(0.5 * a) * i);
  double y = x <= 2 ? low : m_k0_large_(4 / x - 1) / moth_libm_sqrt(x);
  return x == 0 ? (double)m_inf() : x < 0 ? (double)m_nan() : y;
}
MOTH_FN double m_k1e_of_(double x) {
  double a = x < 2 ? x : 2, e = m_wide_exp_(a), i = e * m_i1_small_(a * 0.25 - 1) * a;
  double low = e * (m_k1_small_(a * a * 0.5 - 1) / a + m_wide_log_of_(0.5 * a) * i);
  double y = x <= 2 ? low : m_k1_large_(4 / x - 1) / moth_libm_sqrt(x);
  return x == 0 ? (double)m_inf() : x < 0 ? (double)m_nan() : y;
}
MOTH_FN real m_scaled_modified_bessel_k0(real x) {
  return (real)m_k0e_of_((double)x);
}
MOTH_FN real m_scaled_modified_bessel_k1(real x) {
  return (real)m_k1e_of_((double)x);
}
MOTH_FN real m_modified_bessel_k0(real x) {
  return (real)(m_k0e_of_((double)x) * m_wide_exp_(-(double)x));
}
MOTH_FN real m_modified_bessel_k1(real x) {
  return (real)(m_k1e_of_((double)x) * m_wide_exp_(-(double)x));
}
// J0(x), J1(x) / x and what is left of Y0 and Y1 / x without their logarithms, by x^2 up to 8; beyond the modulus and the
// phase of Hankel's expansion, by (8 / x)^2.
MOTH_FN double m_bessel_j0_small_(double t) {
  const double c[17] = {
      0.15772797147489012,     -0.0087234423528522211,  0.2651786132033368,
      -0.37009499387264977,    0.15806710233209725,     -0.034893769411408884,
      0.0048191800694676046,   -0.00046062616620627504, 3.2460328821005083e-05,
      -1.7619469077621507e-06, 7.6081635924187821e-08,  -2.6792535305576728e-09,
      7.8486963144794648e-11,  -1.9438346867370164e-12, 4.1253205956343741e-14,
      -7.5885081254475459e-16, 1.2218515873961411e-17,
  };
  return m_chebyshev_(c, 17, 17, t);
}
MOTH_FN double m_bessel_j1_small_(double t) {
  const double c[16] = {
      0.081044846325658115,    -0.14897514506765211,    0.16099926235720971,
      -0.08268049176681791,    0.022213639654966037,    -0.0036469406007692759,
      0.0004050337728354822,   -3.2555548668572587e-05, 1.9858774049915165e-06,
      -9.5219847567504361e-08, 3.6871337590971481e-09,  -1.178026622695885e-10,
      3.1601545803480032e-12,  -7.2217552396517734e-14, 1.4232144003513942e-15,
      -2.4441972916190464e-17,
  };
  return m_chebyshev_(c, 16, 16, t);
}
MOTH_FN double m_bessel_y0_small_(double t) {
  const double c[17] = {
      -0.033146113203284942,   -0.27447430552974528,    0.17903431407718265,
      0.26156734625504663,     -0.17730201278114358,    0.04719668959576339,
      -0.0072879624795520789,  0.0007531135932577742,   -5.6320791410569873e-05,
      3.2065325376548008e-06,  -1.44072332740187e-07,   5.2487947873305158e-09,
      -1.5837552541812015e-10, 4.0263308183061204e-12,  -8.7473412033107693e-14,
      1.6434898714919468e-15,  -2.6977881152566837e-17,
  };
  return m_chebyshev_(c, 17, 17, t);
}
MOTH_FN double m_bessel_y1_small_(double t) {
  const double c[16] = {
      0.0025380132357417816,   -0.016087173047668751,   -0.095912045360830742,
      0.084451972596523456,    -0.028328123944594365,   0.0052898975441671133,
      -0.0006414551451326356,  5.5059828733387439e-05,  -3.5380800186893499e-06,
      1.7707804556154404e-07,  -7.1105500498992796e-09, 2.3443379059115162e-10,
      -6.4651518414115946e-12, 1.51429151205002e-13,    -3.0511859694473254e-15,
      5.3466803857286703e-17,
  };
  return m_chebyshev_(c, 16, 16, t);
}
MOTH_FN double m_bessel_p0_(double t) {
  const double c[13] = {
      0.99946034934751871,     -0.00053652204681321172, 3.0751847875194745e-06,
      -5.1705945376060975e-08, 1.6306464635151382e-09,  -7.8640913772370698e-11,
      5.1682623873491928e-12,  -4.3045788699253914e-13, 4.3265957431549404e-14,
      -5.0690340959352359e-15, 6.7480722157338734e-16,  -1.0011513723467786e-16,
      1.6305919233744186e-17,
  };
  return m_chebyshev_(c, 13, 13, t);
}
MOTH_FN double m_bessel_q0_(double t) {
  const double c[16] = {
      -0.12444683684269607,    0.00054708159540893195,  -5.9315987288485175e-06,
      1.4377965798375193e-07,  -5.8175327494930561e-09, 3.3760975237349908e-10,
      -2.5653979367973079e-11, 2.404916100281365e-12,   -2.6690625482579414e-13,
      3.4041800321963686e-14,  -4.8799441053120397e-15, 7.7297031762426054e-16,
      -1.3348852171502517e-16, 2.4865952389390515e-17,  -4.9528926298865157e-18,
      1.0473158973776097e-18,
  };
  return m_chebyshev_(c, 16, 16, t);
}
MOTH_FN double m_bessel_p1_(double t) {
  const double c[13] = {
      1.0009030408600137,      0.00089898983308594083,  -3.9872843004889084e-06,
      6.1776339606442988e-08,  -1.8718907491063067e-09, 8.8168986595823391e-11,
      -5.7048636403956448e-12, 4.699195515230542e-13,   -4.6842237839904895e-14,
      5.4526748960447171e-15,  -7.2211808422740179e-16, 1.0667689114335412e-16,
      -1.7312313216116335e-17,
  };
  return m_chebyshev_(c, 13, 13, t);
}
MOTH_FN double m_bessel_q1_(double t) {
  const double c[15] = {
      0.37422229655628259,     -0.00077021788393256637, 7.3108922063643636e-06,
      -1.6767825107266739e-07, 6.5833546621204433e-09,  -3.7490909505415562e-10,
      2.8121750359748866e-11,  -2.61145253946232e-12,   2.8774212663332235e-13,
      -3.6490019160618379e-14, 5.2066263662267069e-15,  -8.2153180254585947e-16,
      1.4141084390211833e-16,  -2.6267615898385291e-17, 5.2192649196714085e-18,
  };
  return m_chebyshev_(c, 15, 15, t);
}
// With s = sin(a) and c = cos(a).
MOTH_FN double m_bessel_j0_of_(double a, double s, double c) {
  double u = 64 / (a * a), q = m_bessel_q0_(2 * u - 1) / a;
  double far =
      (m_bessel_p0_(2 * u - 1) * (c + s) - q * (s - c)) / moth_libm_sqrt(3.14159265358979324 * a);
  return a == 0 ? 1 : a <= 8 ? m_bessel_j0_small_(a * a * 0.03125 - 1) : far;
}
MOTH_FN double m_bessel_j1_of_(double a, double s, double c) {
  double u = 64 / (a * a), q = m_bessel_q1_(2 * u - 1) / a;
  double far =
      (m_bessel_p1_(2 * u - 1) * (s - c) + q * (s + c)) / moth_libm_sqrt(3.14159265358979324 * a);
  return a <= 8 ? m_bessel_j1_small_(a * a * 0.03125 - 1) * a : far;
}
MOTH_FN double m_bessel_y0_of_(double a, double s, double c) {
  double u = 64 / (a * a), q = m_bessel_q0_(2 * u - 1) / a;
  double far =
      (m_bessel_p0_(2 * u - 1) * (s - c) + q * (s + c)) / moth_libm_sqrt(3.14159265358979324 * a);
  double near = m_bessel_y0_small_(a * a * 0.03125 - 1) +
                0.63661977236758134 * m_wide_log_of_(a) * m_bessel_j0_small_(a * a * 0.03125 - 1);
  double y = a <= 8 ? near : far;
  return a == 0 ? -(double)m_inf() : a < 0 ? (double)m_nan() : y;
}
MOTH_FN double m_bessel_y1_of_(double a, double s, double c) {
  double u = 64 / (a * a), q = m_bessel_q1_(2 * u - 1) / a;
  double far =
      (q * (s - c) - m_bessel_p1_(2 * u - 1) * (s + c)) / moth_libm_sqrt(3.14159265358979324 * a);
  double j = m_bessel_j1_small_(a * a * 0.03125 - 1) * a;
  double near = m_bessel_y1_small_(a * a * 0.03125 - 1) * a +
                0.63661977236758134 * (m_wide_log_of_(a) * j - 1 / a);
  double y = a <= 8 ? near : far;
  return a == 0 ? -(double)m_inf() : a < 0 ? (double)m_nan() : y;
}
MOTH_FN real m_bessel_j0(real x) {
  double a = (double)m_abs(x), y = m_bessel_j0_of_(a, m_wide_sin_(a), m_wide_cos_(a));
  return m_abs(x) == m_inf() ? 0 : (real)(y);
}
// For blocks of elements that are easy (src/codegen/c.lua), with the same bits; so of the others, too.
MOTH_FN int m_bessel_j0_easy(real x) {
  return m_abs(x) < 1048576;
}
MOTH_FN real m_bessel_j0_fast(real x) {
  double a = (double)m_abs(x), y = m_bessel_j0_of_(a, m_wide_sin_fast_(a), m_wide_cos_fast_(a));
  return (real)(y);
}
MOTH_FN real m_bessel_y0(real x) {
  double a = (double)x, y = m_bessel_y0_of_(a, m_wide_sin_(a), m_wide_cos_(a));
  return x == m_inf() ? 0 : (real)y;
}
MOTH_FN int m_bessel_y0_easy(real x) {
  return m_abs(x) < 1048576;
}
MOTH_FN real m_bessel_y0_fast(real x) {
  double a = (double)x;
  return (real)m_bessel_y0_of_(a, m_wide_sin_fast_(a), m_wide_cos_fast_(a));
}
MOTH_FN real m_bessel_j1(real x) {
  double a = (double)m_abs(x), y = m_bessel_j1_of_(a, m_wide_sin_(a), m_wide_cos_(a));
  return m_abs(x) == m_inf() ? 0 : (real)(x < 0 ? -y : y);
}
MOTH_FN int m_bessel_j1_easy(real x) {
  return m_abs(x) < 1048576;
}
MOTH_FN real m_bessel_j1_fast(real x) {
  double a = (double)m_abs(x), y = m_bessel_j1_of_(a, m_wide_sin_fast_(a), m_wide_cos_fast_(a));
  return (real)(x < 0 ? -y : y);
}
MOTH_FN real m_bessel_y1(real x) {
  double a = (double)x, y = m_bessel_y1_of_(a, m_wide_sin_(a), m_wide_cos_(a));
  return x == m_inf() ? 0 : (real)y;
}
MOTH_FN int m_bessel_y1_easy(real x) {
  return m_abs(x) < 1048576;
}
MOTH_FN real m_bessel_y1_fast(real x) {
  double a = (double)x;
  return (real)m_bessel_y1_of_(a, m_wide_sin_fast_(a), m_wide_cos_fast_(a));
}
// sin(x) / x.
MOTH_FN real m_spherical_bessel_j0(real x) {
  real a = m_abs(x), z = x * x;
  return a == m_inf()     ? 0
         : a < (real)1e-3 ? 1 - z * ((real)(1.0 / 6) - z * (real)(1.0 / 120))
                          : m_sin(x) / x;
}
// Airy's function: on [-4, 0]; e^x Ai(x) on [0, 4]; beyond e^zeta x^(1/4) Ai(x) by 1 / zeta, zeta = 2/3 x^(3/2); below -4
// the modulus and the phase, by 1 / zeta^2.
MOTH_FN double m_airy_mid_(double t) {
  const double c[27] = {
      0.11447758651998736,     0.42127788420449913,     -0.027734597101387943,
      -0.23365796110601145,    0.069395595645774077,    0.024461772007139792,
      -0.014766437693581868,   0.0008023889779525898,   0.0010230295738488458,
      -0.00025149312069092621, -1.2152476924968542e-05, 1.4468912917662048e-05,
      -1.8654536874239819e-06, -2.5993578018713978e-07, 1.0341710658801066e-07,
      -6.9571266870052727e-09, -1.9517093523971569e-09, 4.440109838536824e-10,
      -1.1398870033140025e-11, -8.3701155869231871e-12, 1.2611082165186202e-12,
      1.0125908288303646e-14,  -2.3799523654108911e-14, 2.5144316602653423e-15,
      1.0116342805635523e-16,  -4.8521032906495331e-17, 3.6476065757952661e-18,
  };
  return m_chebyshev_(c, 27, 27, t);
}
MOTH_FN double m_airy_near_(double t) {
  const double c[23] = {
      0.23414993601104711,     -0.17819351313823914,   -0.027679831009759497,
      0.02794431950185778,     -0.0033604545830556742, -0.0012904909581887456,
      0.00039683695610504298,  4.9604570869430199e-07, -1.5885603959852478e-05,
      2.0571290683974115e-06,  2.3478205157574091e-07, -8.4075690281013389e-08,
      3.5738159522101029e-09,  1.5150349806449624e-09, -2.2982519290735268e-10,
      -6.0399265360476681e-12, 4.6285153306193621e-12, -3.3044276751006978e-13,
      -4.1060638503499828e-14, 8.3236273861164957e-15, -1.5476872106726523e-16,
      -9.2841086863445959e-17, 9.3563863365570925e-18,
  };
  return m_chebyshev_(c, 23, 15, t);
}
MOTH_FN double m_airy_far_(double t) {
  const double c[16] = {
      0.28037842751535313,     -0.0016789385432554166,  3.5965340335216605e-05,
      -1.3808186027392284e-06, 7.411228077315053e-08,   -5.0023820390013302e-09,
      4.0069391741718425e-10,  -3.6733124279590504e-11, 3.7603443959237382e-12,
      -4.2232133271874755e-13, 5.1350945403365707e-14,  -6.6909585039047759e-15,
      9.2666754564129064e-16,  -1.3551438241607058e-16, 2.0811549631283098e-17,
      -3.3411649915917686e-18,
  };
  return m_chebyshev_(c, 16, 8, t);
}
MOTH_FN double m_airy_p_(double t) {
  const double c[18] = {
      0.56383464571656772,     -0.00035074744435224884, 4.0515547249367862e-06,
      -1.306815301463796e-07,  7.4564897031179594e-09,  -6.171521005847185e-10,
      6.6544021622243461e-11,  -8.755568954306792e-12,  1.3466795822486583e-12,
      -2.350148010839466e-13,  4.5539567118307682e-14,  -9.6406308138155045e-15,
      2.202000997964978e-15,   -5.3733284959952152e-16, 1.3897575315243399e-16,
      -3.7851916201018753e-17, 1.0798248330927817e-17,  -3.2119788953632113e-18,
  };
  return m_chebyshev_(c, 18, 18, t);
}
MOTH_FN double m_airy_q_(double t) {
  const double c[22] = {
      0.038828489400680413,    -0.00034354360412384511, 7.4327187742346727e-06,
      -3.3930767279699904e-07, 2.4415514909387545e-08,  -2.3965259974383157e-09,
      2.9520009077592681e-10,  -4.3286266501073545e-11, 7.2914786729686427e-12,
      -1.3757930881317375e-12, 2.8542617542834778e-13,  -6.4196389578454985e-14,
      1.5482139235559184e-14,  -3.9687815336003157e-15, 1.0737720678863225e-15,
      -3.0483391929493609e-16, 9.036461523893878e-17,   -2.7857015503282681e-17,
      8.8992081738674075e-18,  -2.9372440806730725e-18, 9.9899853180117326e-19,
      -3.4932755048142819e-19,
  };
  return m_chebyshev_(c, 22, 22, t);
}
// Of d >= -4.
MOTH_FN double m_airy_right_(double d) {
  double root = moth_libm_sqrt(d > 4 ? d : 4), zeta = root * root * root * (2.0 / 3);
  double near = m_airy_near_(d * 0.5 - 1);
  double far = m_airy_far_(1 / zeta * 10.666666666666666 - 1) / moth_libm_sqrt(root);
  double right = (d > 4 ? far : near) * m_wide_exp_(d > 4 ? -zeta : -d);
  return d >= 0 ? right : m_airy_mid_(d * 0.5 + 1);
}
MOTH_FN real m_airy_ai(real x) {
  double d = (double)x, a = d < 0 ? -d : d, root = moth_libm_sqrt(a), zeta = a * root * (2.0 / 3);
  double u = 1 / (zeta * zeta) * 56.888888888888889 - 1, y;
  double phase = zeta - 0.78539816339744831;
  if (x != x)
    return x;
  if (a == (double)m_inf())
    return d > 0 ? 0 : m_nan();
  if (d >= -4)
    y = m_airy_right_(d);
  else
    y = (m_airy_p_(u) * m_wide_cos_(phase) + m_airy_q_(u) / zeta * m_wide_sin_(phase)) /
        moth_libm_sqrt(root);
  return (real)y;
}
// For blocks of elements that are easy (src/codegen/c.lua), with the same bits.
MOTH_FN int m_airy_ai_easy(real x) {
  return (x >= -4) & (x < m_inf());
}
MOTH_FN real m_airy_ai_fast(real x) {
  return (real)m_airy_right_((double)x);
}
