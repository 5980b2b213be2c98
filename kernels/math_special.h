// Special functions of float32 and float64, computed in double for both. Only math_float.h includes this.
//
// Where a function has no short form it is a sum of Chebyshev polynomials on a few intervals, fitted with 45 digits of
// the function itself, scaled by what it grows like. Beside roots the error is that of the largest value in the interval.

// The sum of c[k] T_k(t), by Clenshaw's recurrence.
MOTH_FN double m_chebyshev_(const double *c, int n, double t) {
  double a = 0, b = 0;
  for (int k = n - 1; k > 0; k--) {
    double next = 2 * t * a - b + c[k];
    b = a;
    a = next;
  }
  return t * a - b + c[0];
}

// ---- error functions ---------------------------------------------------------------------------

// (1 + 2x) e^(x^2) erfc(x) at t = (x - 4) / (x + 4).
MOTH_FN double m_erfcx_sum_(double t) {
  const double c[26] = {
      1.1774832005374487,      -0.0072607966203019009,  -0.081265123236184997,
      0.060092128041222249,    -0.028753935580276661,   0.010595663363472859,
      -0.0031369272945542641,  0.00074564943725361843,  -0.0001369696503010054,
      1.7183861600300937e-05,  -7.1583646234503878e-07, -2.4261399442450232e-07,
      5.5765709395695505e-08,  -2.1057869513878783e-09, -1.1717889351924387e-09,
      1.9098355172464859e-10,  1.4088717646143637e-11,  -6.9011083135719611e-12,
      9.1679591522215126e-14,  2.145450895897435e-13,   -1.4716571260505223e-14,
      -6.6686752984767319e-15, 7.5045580979581365e-16,  2.2200252474862843e-16,
      -3.1712553836636332e-17, -8.2000275010609986e-18,
  };
  return m_chebyshev_(c, 26, t);
}
MOTH_FN double m_erfcx_of_(double x) {
  double a = x < 0 ? -x : x;
  double t = a > 1e300 ? 1 : (a - 4) / (a + 4);
  double y = m_erfcx_sum_(t) / (1 + 2 * a);
  double square = moth_libm_exp(a * a);
  return x < 0 ? 2 * square - y : x != x ? x : x == 0 ? 1 : y;
}
MOTH_FN real m_erfcx(real x) {
  return (real)m_erfcx_of_((double)x);
}
// y / x, for x = erf(y), by w = -log(1 - x^2): up to 6.25, from there on by its root. Of float32 to 2^-35 and without the
// last interval, which it does not reach.
#if MOTH_REAL_KIND == 1
MOTH_FN double m_erfinv_low_(double t) {
  double p = 1.7813430371061979e-7;
  p = p * t - 8.3549031198153649e-7;
  p = p * t - 6.3974887866056615e-8;
  p = p * t + 6.6220227590843473e-6;
  p = p * t - 1.1853398027065286e-5;
  p = p * t - 1.4512089713102134e-5;
  p = p * t + 9.3707595531310159e-5;
  p = p * t - 0.00011717343209106907;
  p = p * t - 0.00026450884647904046;
  p = p * t + 0.0012325730543003134;
  p = p * t - 0.0012716702344450852;
  p = p * t - 0.0041373285127279821;
  p = p * t + 0.017808359698676277;
  p = p * t - 0.022604446433053895;
  p = p * t - 0.0589225670250687;
  p = p * t + 0.75049432005854281;
  p = p * t + 1.6536545626826207;
  return p;
}
MOTH_FN double m_erfinv_mid_(double t) {
  double p = 2.3292475246036026e-7;
  p = p * t + 1.8802099649709059e-6;
  p = p * t - 8.3518179504979085e-6;
  p = p * t + 7.620989937762787e-6;
  p = p * t + 2.5150351822960476e-5;
  p = p * t - 0.00011973263283045551;
  p = p * t + 0.00029698654453876844;
  p = p * t - 0.00055645849604908675;
  p = p * t + 0.00095905774365873693;
  p = p * t - 0.0018322799758445671;
  p = p * t + 0.0031911823356427193;
  p = p * t + 0.88063799992545791;
  p = p * t + 3.2096201356409152;
  return p;
}
#else
MOTH_FN double m_erfinv_low_(double t) {
  double p = -2.5466157998892667e-10;
  p = p * t + 7.680990475576525e-10;
  p = p * t + 1.4461050507676023e-9;
  p = p * t - 8.5579840744792019e-9;
  p = p * t + 5.0395964779580635e-9;
  p = p * t + 3.9142671001331082e-8;
  p = p * t - 9.905042307855316e-8;
  p = p * t - 1.0167881522843899e-8;
  p = p * t + 5.397895417173957e-7;
  p = p * t - 1.059336931327948e-6;
  p = p * t - 6.8394485841110286e-7;
  p = p * t + 7.1300663740767114e-6;
  p = p * t - 1.1257223742289599e-5;
  p = p * t - 1.5027713926607672e-5;
  p = p * t + 9.3367365258555527e-5;
  p = p * t - 0.00011688883906368398;
  p = p * t - 0.00026439366376450274;
  p = p * t + 0.0012324855685500931;
  p = p * t - 0.0012716922689230541;
  p = p * t - 0.004137314377403391;
  p = p * t + 0.017808361818321755;
  p = p * t - 0.022604447453450232;
  p = p * t - 0.058922567103778392;
  p = p * t + 0.75049432007996358;
  p = p * t + 1.6536545626831027;
  return p;
}
MOTH_FN double m_erfinv_mid_(double t) {
  double p = -8.4159228646791657e-11;
  p = p * t + 2.5141338270783813e-10;
  p = p * t + 2.0395778736400613e-10;
  p = p * t - 2.5341397440785191e-9;
  p = p * t + 6.8359862458495228e-9;
  p = p * t - 4.6711505636826827e-9;
  p = p * t - 3.8909918711401949e-8;
  p = p * t + 1.7351678987628939e-7;
  p = p * t - 2.8807242706758671e-7;
  p = p * t - 3.1179829582648244e-7;
  p = p * t + 2.9977437103567934e-6;
  p = p * t - 7.6371686472456751e-6;
  p = p * t + 6.1639960227409178e-6;
  p = p * t + 2.4675867882678086e-5;
  p = p * t - 0.00011884318959069889;
  p = p * t + 0.00029714979009542093;
  p = p * t - 0.00055672026268439694;
  p = p * t + 0.00095903086045671685;
  p = p * t - 0.0018322470786513887;
  p = p * t + 0.003191184001018939;
  p = p * t + 0.88063799874642311;
  p = p * t + 3.209620135624037;
  return p;
}
#endif
MOTH_FN double m_erfinv_high_(double t) {
  double p = -2.8435400987229123e-12;
  p = p * t + 3.8589897071314418e-11;
  p = p * t - 1.5787640005633369e-10;
  p = p * t + 3.8755213294104481e-10;
  p = p * t - 8.0673239589089851e-10;
  p = p * t + 1.6129877658394607e-9;
  p = p * t - 3.2194128582133601e-9;
  p = p * t + 7.8312695379528406e-9;
  p = p * t - 2.8147463570551814e-8;
  p = p * t + 1.3091385711880057e-7;
  p = p * t - 6.4735017858289364e-7;
  p = p * t + 3.118800136107095e-6;
  p = p * t - 1.4023132508620284e-5;
  p = p * t + 5.514872638423054e-5;
  p = p * t - 0.00015004600199715396;
  p = p * t - 0.00027432268759772977;
  p = p * t + 1.0101951772794836;
  p = p * t + 5.1024697665054209;
  return p;
}
MOTH_FN double m_erfinv_root_(double w, double s) {
  double low = m_erfinv_low_(w * 0.32 - 1), mid = m_erfinv_mid_((s - 3.375) / 0.875);
#if MOTH_REAL_KIND == 1
  return w < 6.25 ? low : mid;
#else
  double high = m_erfinv_high_(s - 5.25);
  return w < 6.25 ? low : s < 4.25 ? mid : high;
#endif
}
MOTH_FN double m_erfinv_of_(double x) {
  double u = (1 - x) * (1 + x), w = -m_wide_log_(u > 0 ? u : 1), s = moth_libm_sqrt(w);
  double y = m_erfinv_root_(w, s);
  y = x == 1 || x == -1 ? (double)m_inf() : u >= 0 ? y : (double)m_nan();
  return x * y;
}
MOTH_FN real m_erfinv(real x) {
  return (real)m_erfinv_of_((double)x);
}
// (z - log(z) / z - y) z, where the normal distribution is p below -y and z = sqrt(-2 log(p)), by 1 / z.
MOTH_FN double m_ndtri_near_(double t) {
  const double c[29] = {
      1.0296363247831735,      0.075340625225842187,    -0.0010644199475439984,
      -0.00015296963020105847, 7.1824352656331948e-05,  -2.2824732111645823e-05,
      6.302370118098129e-06,   -1.629725732595321e-06,  4.1425208589725299e-07,
      -1.0677841463587903e-07, 2.8333629196156087e-08,  -7.7569662473264244e-09,
      2.1810540858594501e-09,  -6.2609317194031603e-10, 1.8264448514793913e-10,
      -5.3993048049841407e-11, 1.6148391901453847e-11,  -4.8811792571887302e-12,
      1.4898508512603773e-12,  -4.5878750887928565e-13, 1.4241830265560299e-13,
      -4.4531085977099659e-14, 1.4015184611665934e-14,  -4.4371957001847989e-15,
      1.4124303228767117e-15,  -4.5183560713800156e-16, 1.4520455594525304e-16,
      -4.686164485051954e-17,  1.51830618246309e-17,
  };
  return m_chebyshev_(c, 29, t);
}
MOTH_FN double m_ndtri_far_(double t) {
  const double c[27] = {
      0.93786917535793346,     0.015112253858249311,    0.00060345485409881653,
      -0.00011295105899142844, 1.8104324672632141e-05,  -3.1554685092256361e-06,
      6.1658428519154211e-07,  -1.3244478054008696e-07, 3.0534166463151449e-08,
      -7.4261294003487291e-09, 1.8829386730624519e-09,  -4.9358995238617436e-10,
      1.3294968805695556e-10,  -3.6626849961798884e-11, 1.0284163237977747e-11,
      -2.9349065307387287e-12, 8.4941101108416011e-13,  -2.488652987824336e-13,
      7.3705017076767024e-14,  -2.2038755151253117e-14, 6.6464559905104296e-15,
      -2.0198987372077698e-15, 6.1813497304323185e-16,  -1.9035910458110817e-16,
      5.8960294698535261e-17,  -1.8358230436201299e-17, 5.7438388436386316e-18,
  };
  return m_chebyshev_(c, 27, t);
}
MOTH_FN double m_ndtri_of_(double p) {
  double tail = p > 0.5 ? 1 - p : p;
  double z = moth_libm_sqrt(-2 * moth_libm_log(tail)), t = 1 / z;
  double h = z < 9 ? m_ndtri_near_((2 * t - (1.0 / 9 + 0.5)) / (0.5 - 1.0 / 9))
                   : m_ndtri_far_((2 * t - (1.0 / 39 + 1.0 / 9)) / (1.0 / 9 - 1.0 / 39));
  double y = h * t - (z - moth_libm_log(z) * t);
  double inside = 1.4142135623730951 * m_erfinv_of_(2 * p - 1);
  y = p > 0.5 ? -y : y;
  y = tail > 0.14 ? inside : y;
  return tail == 0  ? (p > 0.5 ? (double)m_inf() : -(double)m_inf())
         : tail < 0 ? (double)m_nan()
                    : y;
}
MOTH_FN real m_ndtri(real p) {
  return (real)m_ndtri_of_((double)p);
}
MOTH_FN real m_ndtr(real x) {
  return (real)(0.5 * moth_libm_erfc((double)x * -0.70710678118654752));
}
// log of the normal distribution: in the lower tail by erfcx.
MOTH_FN real m_log_ndtr(real x) {
  double d = (double)x, t = d * 0.70710678118654752;
  double low = moth_libm_log(m_erfcx_of_(-t) * 0.5) - t * t;
  double high = moth_libm_log1p(-0.5 * moth_libm_erfc(t));
  return (real)(d < -1 ? low : high);
}

// ---- x log(y) and others that are 0 where x is 0 -------------------------------------------------

MOTH_FN real m_xlogy(real x, real y) {
  return y != y ? y : x == 0 ? 0 : x * m_log(y);
}
MOTH_FN real m_xlog1py(real x, real y) {
  return y != y ? y : x == 0 ? 0 : x * m_log1p(y);
}
// -x log(x); -Inf for x < 0.
MOTH_FN real m_entr(real x) {
  return x > 0 ? -x * m_log(x) : x == 0 ? 0 : x != x ? x : -m_inf();
}
// sin(pi x) / (pi x), its derivative and the second one: by the first terms of their series where they cancel.
MOTH_FN real m_sinc(real x) {
  real t = x * (real)3.14159265358979324;
  return x == 0 ? 1 : m_sin(t) / t;
}
MOTH_FN real m_sinc_backward(real g, real x) {
  double t = (double)x * 3.14159265358979324, z = t * t, a = z < 0.25 ? z : 0.25;
  double near = (((((((a / -22230464256000.0 + 1.0 / 93405312000.0) * a - 1.0 / 518918400) * a +
                     1.0 / 3991680) *
                        a -
                    1.0 / 45360) *
                       a +
                   1.0 / 840) *
                      a -
                  1.0 / 30) *
                     -a -
                 1.0 / 3) *
                t;
  double far = (moth_libm_cos(t) - moth_libm_sin(t) / t) / t;
  return g * (real)(3.14159265358979324 * (z < 0.25 ? near : far));
}
MOTH_FN real m_sinc_double(real x) {
  double t = (double)x * 3.14159265358979324, z = t * t, a = z < 0.25 ? z : 0.25;
  double near =
      (((((((a / 1482030950400.0 - 1.0 / 7185024000.0) * a + 1.0 / 47174400) * a - 1.0 / 443520) *
              a +
          1.0 / 6480) *
             a -
         1.0 / 168) *
            a +
        1.0 / 10) *
           a -
       1.0 / 3);
  double s = moth_libm_sin(t) / t, far = -s - 2 * (moth_libm_cos(t) - s) / z;
  return (real)(9.8696044010893586 * (z < 0.25 ? near : far));
}
MOTH_FN real m_logaddexp2(real a, real b) {
  real m = a > b ? a : b, d = a == b ? 0 : -m_abs(a - b);
  return a != a || b != b ? a + b : m + m_log1p_unit_(m_exp2(d)) * (real)1.4426950408889634;
}
MOTH_FN real m_heaviside(real x, real zero) {
  return x == 0 ? zero : x > 0 ? 1 : 0;
}
MOTH_FN real m_signbit(real x) {
  return m_copysign(1, x) < 0 ? 1 : 0;
}

// ---- Bessel functions ----------------------------------------------------------------------------

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
  return m_chebyshev_(c, 29, t);
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
  return m_chebyshev_(c, 25, t);
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
  return m_chebyshev_(c, 29, t);
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
  return m_chebyshev_(c, 25, t);
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
         half = moth_libm_exp(0.5 * a); // in two parts: e^a may be Inf where I0 is not
  return a > 1500 ? m_inf() : (real)(m_i0e_of_(a) * half * half);
}
MOTH_FN real m_i1e(real x) {
  double y = m_i1e_of_((double)m_abs(x));
  return (real)(x < 0 ? -y : y);
}
MOTH_FN real m_i1(real x) {
  double a = (double)m_abs(x), half = moth_libm_exp(0.5 * a);
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
  return m_chebyshev_(c, 10, t);
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
  return m_chebyshev_(c, 24, t);
}
MOTH_FN double m_k1_small_(double t) {
  const double c[11] = {
      0.76265011366947388,    -0.35315596077654487,    -0.12261118082265715,
      -0.0069757238596398641, -0.0001730288957513052,  -2.4334061415659684e-06,
      -2.213387630734726e-08, -1.4114883926335278e-10, -6.6669016941993295e-13,
      -2.427449850519366e-15, -7.0238634793862882e-18,
  };
  return m_chebyshev_(c, 11, t);
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
  return m_chebyshev_(c, 24, t);
}
// e^x K0(x), e^x K1(x): NaN for x < 0, Inf at 0.
MOTH_FN double m_k0e_of_(double x) {
  double low = moth_libm_exp(x) * (m_k0_small_(x * x * 0.5 - 1) -
                                   moth_libm_log(0.5 * x) * moth_libm_exp(x) * m_i0e_of_(x));
  double y = x <= 2 ? low : m_k0_large_(4 / x - 1) / moth_libm_sqrt(x);
  return x == 0 ? (double)m_inf() : x < 0 ? (double)m_nan() : y;
}
MOTH_FN double m_k1e_of_(double x) {
  double low = moth_libm_exp(x) * (m_k1_small_(x * x * 0.5 - 1) / x +
                                   moth_libm_log(0.5 * x) * moth_libm_exp(x) * m_i1e_of_(x));
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
  return (real)(m_k0e_of_((double)x) * moth_libm_exp(-(double)x));
}
MOTH_FN real m_modified_bessel_k1(real x) {
  return (real)(m_k1e_of_((double)x) * moth_libm_exp(-(double)x));
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
  return m_chebyshev_(c, 17, t);
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
  return m_chebyshev_(c, 16, t);
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
  return m_chebyshev_(c, 17, t);
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
  return m_chebyshev_(c, 16, t);
}
MOTH_FN double m_bessel_p0_(double t) {
  const double c[13] = {
      0.99946034934751871,     -0.00053652204681321172, 3.0751847875194745e-06,
      -5.1705945376060975e-08, 1.6306464635151382e-09,  -7.8640913772370698e-11,
      5.1682623873491928e-12,  -4.3045788699253914e-13, 4.3265957431549404e-14,
      -5.0690340959352359e-15, 6.7480722157338734e-16,  -1.0011513723467786e-16,
      1.6305919233744186e-17,
  };
  return m_chebyshev_(c, 13, t);
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
  return m_chebyshev_(c, 16, t);
}
MOTH_FN double m_bessel_p1_(double t) {
  const double c[13] = {
      1.0009030408600137,      0.00089898983308594083,  -3.9872843004889084e-06,
      6.1776339606442988e-08,  -1.8718907491063067e-09, 8.8168986595823391e-11,
      -5.7048636403956448e-12, 4.699195515230542e-13,   -4.6842237839904895e-14,
      5.4526748960447171e-15,  -7.2211808422740179e-16, 1.0667689114335412e-16,
      -1.7312313216116335e-17,
  };
  return m_chebyshev_(c, 13, t);
}
MOTH_FN double m_bessel_q1_(double t) {
  const double c[15] = {
      0.37422229655628259,     -0.00077021788393256637, 7.3108922063643636e-06,
      -1.6767825107266739e-07, 6.5833546621204433e-09,  -3.7490909505415562e-10,
      2.8121750359748866e-11,  -2.61145253946232e-12,   2.8774212663332235e-13,
      -3.6490019160618379e-14, 5.2066263662267069e-15,  -8.2153180254585947e-16,
      1.4141084390211833e-16,  -2.6267615898385291e-17, 5.2192649196714085e-18,
  };
  return m_chebyshev_(c, 15, t);
}
MOTH_FN double m_bessel_j0_of_(double a) {
  double u = 64 / (a * a), q = m_bessel_q0_(2 * u - 1) / a, s = moth_libm_sin(a),
         c = moth_libm_cos(a);
  double far =
      (m_bessel_p0_(2 * u - 1) * (c + s) - q * (s - c)) / moth_libm_sqrt(3.14159265358979324 * a);
  return a == 0 ? 1 : a <= 8 ? m_bessel_j0_small_(a * a * 0.03125 - 1) : far;
}
MOTH_FN double m_bessel_j1_of_(double a) {
  double u = 64 / (a * a), q = m_bessel_q1_(2 * u - 1) / a, s = moth_libm_sin(a),
         c = moth_libm_cos(a);
  double far =
      (m_bessel_p1_(2 * u - 1) * (s - c) + q * (s + c)) / moth_libm_sqrt(3.14159265358979324 * a);
  return a <= 8 ? m_bessel_j1_small_(a * a * 0.03125 - 1) * a : far;
}
MOTH_FN real m_bessel_j0(real x) {
  double a = (double)m_abs(x);
  return a == (double)m_inf() ? 0 : (real)m_bessel_j0_of_(a);
}
MOTH_FN real m_bessel_j1(real x) {
  double a = (double)m_abs(x), y = a == (double)m_inf() ? 0 : m_bessel_j1_of_(a);
  return (real)(x < 0 ? -y : y);
}
MOTH_FN real m_bessel_y0(real x) {
  double a = (double)x, u = 64 / (a * a), q = m_bessel_q0_(2 * u - 1) / a;
  double s = moth_libm_sin(a), c = moth_libm_cos(a);
  double far =
      (m_bessel_p0_(2 * u - 1) * (s - c) + q * (s + c)) / moth_libm_sqrt(3.14159265358979324 * a);
  double near = m_bessel_y0_small_(a * a * 0.03125 - 1) +
                0.63661977236758134 * moth_libm_log(a) * m_bessel_j0_of_(a);
  double y = a <= 8 ? near : a == (double)m_inf() ? 0 : far;
  return a == 0 ? -m_inf() : a < 0 ? m_nan() : (real)y;
}
MOTH_FN real m_bessel_y1(real x) {
  double a = (double)x, u = 64 / (a * a), q = m_bessel_q1_(2 * u - 1) / a;
  double s = moth_libm_sin(a), c = moth_libm_cos(a);
  double far =
      (q * (s - c) - m_bessel_p1_(2 * u - 1) * (s + c)) / moth_libm_sqrt(3.14159265358979324 * a);
  double near = m_bessel_y1_small_(a * a * 0.03125 - 1) * a +
                0.63661977236758134 * (moth_libm_log(a) * m_bessel_j1_of_(a) - 1 / a);
  double y = a <= 8 ? near : a == (double)m_inf() ? 0 : far;
  return a == 0 ? -m_inf() : a < 0 ? m_nan() : (real)y;
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
  return m_chebyshev_(c, 27, t);
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
  return m_chebyshev_(c, 23, t);
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
  return m_chebyshev_(c, 16, t);
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
  return m_chebyshev_(c, 18, t);
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
  return m_chebyshev_(c, 22, t);
}
MOTH_FN real m_airy_ai(real x) {
  double d = (double)x, a = d < 0 ? -d : d, root = moth_libm_sqrt(a), zeta = a * root * (2.0 / 3);
  double scale = moth_libm_sqrt(root), u = 1 / (zeta * zeta) * 56.888888888888889 - 1, y;
  double phase = zeta - 0.78539816339744831;
  if (x != x)
    return x;
  if (a == (double)m_inf())
    return d > 0 ? 0 : m_nan();
  if (d > 4)
    y = m_airy_far_(1 / zeta * 10.666666666666666 - 1) * moth_libm_exp(-zeta) / scale;
  else if (d >= 0)
    y = m_airy_near_(d * 0.5 - 1) * moth_libm_exp(-d);
  else if (d >= -4)
    y = m_airy_mid_(d * 0.5 + 1);
  else
    y = (m_airy_p_(u) * moth_libm_cos(phase) + m_airy_q_(u) / zeta * moth_libm_sin(phase)) / scale;
  return (real)y;
}

// ---- zeta, and the incomplete gamma functions -----------------------------------------------------

// Hurwitz' zeta: Inf at s = 1 and at the poles q = 0, -1, …; NaN for s < 1, and for q < 0 where s is not whole.
MOTH_FN real m_zeta(real s, real q) {
  double a = (double)s, b = (double)q;
  if (s != s || q != q)
    return m_nan();
  if (s == 1)
    return m_inf();
  if (s < 1)
    return m_nan();
  if (q <= 0 && b == moth_libm_floor(b))
    return m_inf();
  if (q <= 0 && (a != moth_libm_floor(a) || b < -1e6)) // below, its terms would be too many
    return m_nan();
  return (real)m_zeta_(a, b);
}
// log(1 + m) - m, without the cancellation near 0.
MOTH_FN double m_log1pmx_(double m) {
  double sum = 0, power = m;
  if (m > 0.3 || m < -0.3)
    return moth_libm_log1p(m) - m;
  for (int k = 2; k < 60; k++) {
    power *= -m;
    sum += power / k;
  }
  return sum;
}
// x^a e^-x / Gamma(a + 1), for large a by Stirling's series.
MOTH_FN double m_gamma_density_(double a, double x) {
  double z = 1 / (a * a);
  double tail =
      ((((1.0 / 1188 * z - 1.0 / 1680) * z + 1.0 / 1260) * z - 1.0 / 360) * z + 1.0 / 12) / a;
  if (a < 10)
    return moth_libm_exp(a * moth_libm_log(x) - x - moth_libm_lgamma(a + 1));
  return moth_libm_exp(a * m_log1pmx_((x - a) / a) - tail) /
         moth_libm_sqrt(6.28318530717958648 * a);
}
// The regularised lower (upper: 1) incomplete gamma function, by its series below a + 1, else by a continued fraction
// (Lentz's form).
MOTH_FN double m_incomplete_gamma_(double a, double x, int upper) {
  double inf = (double)m_inf();
  if (a != a || x != x || a < 0 || x < 0 || (a == inf && x == inf))
    return (double)m_nan();
  if (a == 0)
    return x > 0 ? 1 - upper : (double)m_nan();
  if (x == 0 || a == inf)
    return upper;
  if (x == inf)
    return 1 - upper;
  double density = m_gamma_density_(a, x);
  if (x < a + 1) {
    double sum = 1, term = 1;
    for (int k = 1; k < 20000 && term > sum * 1e-17; k++) {
      term *= x / (a + k);
      sum += term;
    }
    return upper ? 1 - density * sum : density * sum;
  }
  double b = x + 1 - a, c = 1e300, d = 1 / b, h = d;
  for (int k = 1; k < 20000; k++) {
    double n = k * (a - k), step;
    b += 2;
    d = n * d + b;
    c = b + n / c;
    d = 1 / (d == 0 ? 1e-300 : d);
    c = c == 0 ? 1e-300 : c;
    step = d * c;
    h *= step;
    if (step - 1 < 1e-16 && step - 1 > -1e-16)
      break;
  }
  return upper ? density * a * h : 1 - density * a * h;
}
MOTH_FN real m_igamma(real a, real x) {
  return (real)m_incomplete_gamma_((double)a, (double)x, 0);
}
MOTH_FN real m_igammac(real a, real x) {
  return (real)m_incomplete_gamma_((double)a, (double)x, 1);
}

// ---- derivatives of samples ----------------------------------------------------------------------
// A sample x = F^-1(u) of a distribution with a parameter a moves by -(dF/da) / p(x) if the parameter does and u stays.
// With R = F / p, that is -((d log p/da) R + dR/da); for 1 - F the sign is the other one. R needs no gamma function.

// For the gamma distribution of shape a and rate 1, for large a: Cornish and Fisher's expansion of x in the normal
// quantile z, and its derivative by a. From 400 on its relative error is below 1e-6. From 400 on its relative error is below 1e-6.
MOTH_FN double m_gamma_sample_far_(double a, double x) {
  double r = 1 / moth_libm_sqrt(a), z = (x - a) * r;
  for (int k = 0; k < 6; k++) {
    double q = z * z;
    double f = z + r * ((q - 1) / 3 + r * (z * (q - 7) / 36 - r * ((3 * q + 7) * q - 16) / 810));
    double g = 1 + r * (2 * z / 3 + r * ((3 * q - 7) / 36 - r * (12 * q + 14) * z / 810));
    z -= (f - (x - a) * r) / g;
  }
  double q = z * z;
  return 1 + r * (z / 2 - r * r * (z * (q - 7) / 72 - r * ((3 * q + 7) * q - 16) / 810));
}
// By the series of F below a + 1: x times the sum of x^n / (a ... (a + n)) (digamma(a + n + 1) - log x); else by the
// continued fraction of 1 - F (Lentz's form) and its derivative.
MOTH_FN double m_gamma_sample_of_(double a, double x) {
  double inf = (double)m_inf();
  if (!(a > 0) || !(x >= 0) || a == inf || x == inf)
    return (double)m_nan();
  if (x == 0)
    return 0;
  if (a > 400)
    return m_gamma_sample_far_(a, x);
  double logarithm = moth_libm_log(x), psi = m_digamma_up_(a, 0);
  if (x < a + 1) {
    double term = 1, sum = 0;
    for (int n = 0; n < 10000; n++) {
      term /= a + n;
      psi += 1 / (a + n);
      double add = term * (psi - logarithm);
      sum += add;
      if (n > 2 && add < 1e-16 * sum && add > -1e-16 * sum)
        break;
      term *= x;
    }
    return x * sum;
  }
  double b = x + 1 - a, c = 1e300, dc = 0, d = 1 / b, dd = d * d, h = d, dh = dd;
  for (int k = 1; k < 10000; k++) {
    double n = k * (a - k);
    b += 2;
    double e = n * d + b, de = k * d + n * dd - 1;
    double f = b + n / c, df = -1 + k / c - n * dc / (c * c);
    e = e == 0 ? 1e-300 : e;
    f = f == 0 ? 1e-300 : f;
    d = 1 / e;
    dd = -de * d * d;
    c = f;
    dc = df;
    double step = d * c, dstep = dd * c + d * dc;
    dh = dh * step + h * dstep;
    h *= step;
    if (step - 1 < 1e-15 && step - 1 > -1e-15 && dstep < 1e-15 && dstep > -1e-15)
      break;
  }
  return x * ((logarithm - psi) * h + dh);
}
MOTH_FN real m_standard_gamma_grad(real a, real x) {
  return (real)m_gamma_sample_of_((double)a, (double)x);
}
// For x of Beta(a, total - a), divided by 1 - x, by the continued fraction of the incomplete beta function of x, or of
// 1 - x, whichever converges, and its derivative by a.
MOTH_FN double m_dirichlet_grad_of_(double x, double a, double total) {
  double b = total - a;
  if (!(a > 0) || !(b > 0) || !(x >= 0) || !(x <= 1))
    return (double)m_nan();
  if (x == 0)
    return 0;
  int low = x <= (a + 1) / (total + 2);
  double p = low ? a : b, q = low ? b : a, y = low ? x : 1 - x, dp = low, dq = 1 - low;
  double c = 1, dc = 0, e = 1 - (p + q) * y / (p + 1);
  double de = -y * ((dp + dq) * (p + 1) - (p + q) * dp) / ((p + 1) * (p + 1));
  e = e == 0 ? 1e-300 : e;
  double d = 1 / e, dd = -de * d * d, h = d, dh = dd;
  for (int m = 1; m < 20000; m++) {
    double before = h, dbefore = dh;
    for (int odd = 0; odd < 2; odd++) {
      double s = p + 2 * m, num = odd ? -(p + m) * (p + q + m) * y : m * (q - m) * y;
      double dnum = odd ? -y * (dp * (p + q + m) + (p + m) * (dp + dq)) : m * dq * y;
      double den = odd ? s * (s + 1) : (s - 1) * s,
             dden = odd ? (2 * s + 1) * dp : (2 * s - 1) * dp;
      double n = num / den, dn = (dnum - n * dden) / den;
      e = 1 + n * d;
      de = dn * d + n * dd;
      double f = 1 + n / c, df = dn / c - n * dc / (c * c);
      e = e == 0 ? 1e-300 : e;
      f = f == 0 ? 1e-300 : f;
      d = 1 / e;
      dd = -de * d * d;
      c = f;
      dc = df;
      dh = dh * (d * c) + h * (dd * c + d * dc);
      h *= d * c;
    }
    double change = h - before, dchange = dh - dbefore, least = 1e-15 * (h < 0 ? -h : h);
    if (change < least && change > -least && dchange < least && dchange > -least)
      break;
  }
  double slope = moth_libm_log(x) - m_digamma_up_(a, 0) + m_digamma_up_(total, 0);
  // R / (1 - x) = x h / p
  double value = x / p * (slope * h + dh - (low ? h / p : 0));
  return low ? -value : value;
}
MOTH_FN real m_dirichlet_grad(real x, real a, real total) {
  return (real)m_dirichlet_grad_of_((double)x, (double)a, (double)total);
}

// ---- orthogonal polynomials of degree n, truncated; 0 for n < 0 --------------------------------------
// Their recurrences take n steps: NaN for a million and more, where there is no other form.

// Chebyshev's: p_k = 2 x p_(k-1) - p_(k-2) from 1 and p1.
MOTH_FN double m_chebyshev_terms_(double x, double p1, double n) {
  double p = 1, q = p1;
  if (!(n < 1e6))
    return (double)m_nan();
  for (double k = 2; k <= n && q == q; k += 1) {
    double next = 2 * x * q - p;
    p = q;
    q = next;
  }
  return n < 1 ? 1 : q;
}
MOTH_FN int m_even_(double n) {
  return moth_libm_floor(n * 0.5) * 2 == n;
}
MOTH_FN double m_chebyshev_t_of_(double x, double order) {
  double n = moth_libm_trunc(order);
  if (n < 0)
    return 0;
  if (x == 1 || x == -1)
    return x > 0 || m_even_(n) ? 1 : -1;
  if (n > 6 && x > -1 && x < 1)
    return moth_libm_cos(n * moth_libm_acos(x));
  return m_chebyshev_terms_(x, x, n);
}
MOTH_FN double m_chebyshev_u_of_(double x, double order) {
  double n = moth_libm_trunc(order);
  if (n < 0)
    return 0;
  if (x == 1 || x == -1)
    return x > 0 || m_even_(n) ? n + 1 : -(n + 1);
  if (n > 8 && x > -1 && x < 1)
    return moth_libm_sin((n + 1) * moth_libm_acos(x)) / moth_libm_sin(moth_libm_acos(x));
  return m_chebyshev_terms_(x, x + x, n);
}
MOTH_FN double m_chebyshev_v_of_(double x, double order) {
  double n = moth_libm_trunc(order);
  if (n < 0)
    return 0;
  if (x == 1 || x == -1)
    return x > 0 ? 1 : m_even_(n) ? n + n + 1 : -(n + n + 1);
  if (n > 8 && x > -1 && x < 1)
    return moth_libm_cos((n + 0.5) * moth_libm_acos(x)) / moth_libm_cos(0.5 * moth_libm_acos(x));
  return m_chebyshev_terms_(x, x + x - 1, n);
}
MOTH_FN double m_chebyshev_w_of_(double x, double order) {
  double n = moth_libm_trunc(order);
  if (n < 0)
    return 0;
  if (x == 1 || x == -1)
    return x > 0 ? n + n + 1 : m_even_(n) ? 1 : -1;
  if (n > 8 && x > -1 && x < 1)
    return moth_libm_sin((n + 0.5) * moth_libm_acos(x)) / moth_libm_sin(0.5 * moth_libm_acos(x));
  return m_chebyshev_terms_(x, x + x + 1, n);
}
MOTH_FN real m_chebyshev_polynomial_t(real x, real n) {
  return (real)m_chebyshev_t_of_((double)x, (double)n);
}
MOTH_FN real m_chebyshev_polynomial_u(real x, real n) {
  return (real)m_chebyshev_u_of_((double)x, (double)n);
}
MOTH_FN real m_chebyshev_polynomial_v(real x, real n) {
  return (real)m_chebyshev_v_of_((double)x, (double)n);
}
MOTH_FN real m_chebyshev_polynomial_w(real x, real n) {
  return (real)m_chebyshev_w_of_((double)x, (double)n);
}
MOTH_FN real m_shifted_chebyshev_polynomial_t(real x, real n) {
  return (real)m_chebyshev_t_of_(2 * (double)x - 1, (double)n);
}
MOTH_FN real m_shifted_chebyshev_polynomial_u(real x, real n) {
  return (real)m_chebyshev_u_of_(2 * (double)x - 1, (double)n);
}
MOTH_FN real m_shifted_chebyshev_polynomial_v(real x, real n) {
  return (real)m_chebyshev_v_of_(2 * (double)x - 1, (double)n);
}
MOTH_FN real m_shifted_chebyshev_polynomial_w(real x, real n) {
  return (real)m_chebyshev_w_of_(2 * (double)x - 1, (double)n);
}
// p_(k+1) = ((a k + b) + (c k + d) x) p_k - (e k) p_(k-1), over k + 1 where `over` is 1.
MOTH_FN double m_three_terms_(double x, double order, double p1, double a, double b, double c,
                              double d, double e, int over) {
  double n = moth_libm_trunc(order), p = 1, q = p1;
  if (n < 1)
    return n < 0 ? 0 : 1;
  if (!(n < 1e6))
    return (double)m_nan();
  for (double k = 1; k < n && q == q; k += 1) {
    double next = (a * k + b + (c * k + d) * x) * q - e * k * p;
    p = q;
    q = over ? next / (k + 1) : next;
  }
  return q;
}
MOTH_FN real m_hermite_polynomial_h(real x, real n) {
  double d = (double)x;
  return (real)m_three_terms_(d, (double)n, d + d, 0, 0, 0, 2, 2, 0);
}
MOTH_FN real m_hermite_polynomial_he(real x, real n) {
  double d = (double)x;
  return (real)m_three_terms_(d, (double)n, d, 0, 0, 0, 1, 1, 0);
}
MOTH_FN real m_laguerre_polynomial_l(real x, real n) {
  double d = (double)x;
  return (real)m_three_terms_(d, (double)n, 1 - d, 2, 1, 0, -1, 1, 1);
}
MOTH_FN real m_legendre_polynomial_p(real x, real n) {
  double d = (double)x;
  return (real)m_three_terms_(d, (double)n, d, 0, 0, 2, 1, 1, 1);
}
