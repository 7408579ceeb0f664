//! Diffie-Hellman groups of RFC 7919, which are those of DH-HMAC-CHAP.

use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd};
use longhaul_wire::fabrics::auth::group_id;
use zeroize::Zeroizing;

/// floor(2^8062 e), in hexadecimal: what the primes have between their first and last 64 bits (RFC 7919,
/// Appendix A).
const DIGITS_OF_E: &str = "\
    adf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce249b3ef97d2fe363630c75d8\
    f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e7f57c935984f0c70e0e68b77\
    e2a689daf3efe8721df158a136ade73530acca4f483a797abc0ab182b324fb61d108a94bb2c8e3fbb96adab760d7f468\
    1d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d709e02fce1cdf7e2ecc03404cd28342f619172fe9ce98583ff\
    8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005c58ef1837d1683b2c6f34a26c1b2effa886b4238611fcfdc\
    de355b3b6519035bbc34f4def99c023861b46fc9d6e6c9077ad91d2691f7f7ee598cb0fac186d91caefe130985139270\
    b4130c93bc437944f4fd4452e2d74dd364f2e21e71f54bff5cae82ab9c9df69ee86d2bc522363a0dabc521979b0deada\
    1dbf9a42d5c4484e0abcd06bfa53ddef3c1b20ee3fd59d7c25e41d2b669e1ef16e6f52c3164df4fb7930e9e4e58857b6\
    ac7d5f42d69f6d187763cf1d5503400487f55ba57e31cc7a7135c886efb4318aed6a1e012d9e6832a907600a918130c4\
    6dc778f971ad0038092999a333cb8b7a1a1db93d7140003c2a4ecea9f98d0acc0a8291cdcec97dcf8ec9b55a7f88a46b\
    4db5a851f44182e1c68a007e5e0dd9020bfd64b645036c7a4e677d2c38532a3a23ba4442caf53ea63bb454329b7624c8\
    917bdd64b1c0fd4cb38e8c334c701c3acdad0657fccfec719b1f5c3e4e46041f388147fb4cfdb477a52471f7a9a96910\
    b855322edb6340d8a00ef092350511e30abec1fff9e3a26e7fb29f8c183023c3587e38da0077d9b4763e4e4b94b2bbc1\
    94c6651e77caf992eeaac0232a281bf6b3a739c1226116820ae8db5847a67cbef9c9091b462d538cd72b03746ae77f5e\
    62292c311562a846505dc82db854338ae49f5235c95b91178ccf2dd5cacef403ec9d1810c6272b045b3b71f9dc6b80d6\
    3fdd4a8e9adb1e6962a69526d43161c1a41d570d7938dad4a40e329ccff46aaa36ad004cf600c8381e425a31d951ae64\
    fdb23fcec9509d43687feb69edd1cc5e0b8cc3bdf64b10ef86b63142a3ab8829555b2f747c932665cb2c0f1cc01bd702\
    29388839d2af05e454504ac78b7582822846c0ba35c35f5c59160cc046fd8251541fc68c9c86b022bb7099876a460e74\
    51a8a93109703fee1c217e6c3826e52c51aa691e0e423cfc99e9e31650c1217b624816cdad9a95f9d5b8019488d9c0a0\
    a1fe3075a577e23183f81d4a3f2fa4571efc8ce0ba8a4fe8b6855dfe72b0a66eded2fbabfbe58a30fafabe1c5d71a87e\
    2f741ef8c1fe86fea6bbfde530677f0d97d11d49f7a8443d0822e506a9f4614e011e2a94838ff88cd68c8bb7c51eef6d";

/// Bytes of a secret exponent: above the 400 bits that RFC 7919, Appendix A, wants of the largest group.
const EXPONENT: usize = 64;
/// Bytes of the ones at both ends of a prime.
const ONES: usize = 8;

/// A group, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DhGroup {
    /// No exchange: an attacker that has recorded a response can try secrets against it.
    Null,
    /// A prime of 2,048 bits.
    Ffdhe2048,
    /// A prime of 3,072 bits.
    Ffdhe3072,
    /// A prime of 4,096 bits.
    Ffdhe4096,
    /// A prime of 6,144 bits.
    Ffdhe6144,
    /// A prime of 8,192 bits.
    Ffdhe8192,
}

impl DhGroup {
    /// All of them, from the smallest on.
    pub const ALL: [DhGroup; 6] = [
        DhGroup::Null,
        DhGroup::Ffdhe2048,
        DhGroup::Ffdhe3072,
        DhGroup::Ffdhe4096,
        DhGroup::Ffdhe6144,
        DhGroup::Ffdhe8192,
    ];

    /// The code on the wire (DHgID).
    pub fn code(self) -> u8 {
        match self {
            DhGroup::Null => group_id::NULL,
            DhGroup::Ffdhe2048 => group_id::FFDHE_2048,
            DhGroup::Ffdhe3072 => group_id::FFDHE_3072,
            DhGroup::Ffdhe4096 => group_id::FFDHE_4096,
            DhGroup::Ffdhe6144 => group_id::FFDHE_6144,
            DhGroup::Ffdhe8192 => group_id::FFDHE_8192,
        }
    }

    /// The group of a code; none for an unknown one.
    pub fn from_code(code: u8) -> Option<DhGroup> {
        DhGroup::ALL.into_iter().find(|one| one.code() == code)
    }

    /// The name, as in RFC 7919.
    pub fn name(self) -> &'static str {
        match self {
            DhGroup::Null => "null",
            DhGroup::Ffdhe2048 => "ffdhe2048",
            DhGroup::Ffdhe3072 => "ffdhe3072",
            DhGroup::Ffdhe4096 => "ffdhe4096",
            DhGroup::Ffdhe6144 => "ffdhe6144",
            DhGroup::Ffdhe8192 => "ffdhe8192",
        }
    }

    /// Bytes of the prime, and the summand X of its formula; none for the null group.
    fn parameters(self) -> Option<(usize, u32)> {
        match self {
            DhGroup::Null => None,
            DhGroup::Ffdhe2048 => Some((256, 560_316)),
            DhGroup::Ffdhe3072 => Some((384, 2_625_351)),
            DhGroup::Ffdhe4096 => Some((512, 5_736_041)),
            DhGroup::Ffdhe6144 => Some((768, 15_705_020)),
            DhGroup::Ffdhe8192 => Some((1024, 10_965_728)),
        }
    }

    /// Bytes of a public value; 0 for the null group.
    pub fn public_len(self) -> usize {
        self.parameters().map_or(0, |(len, _)| len)
    }

    /// The prime, big-endian: 2^b - 2^(b-64) + (floor(2^(b-130) e) + X) 2^64 - 1.
    fn prime(self) -> Option<Vec<u8>> {
        let (len, x) = self.parameters()?;
        let middle = len - 2 * ONES;
        let digit = |n: usize| u8::from_str_radix(&DIGITS_OF_E[2 * n..2 * n + 2], 16).unwrap_or_default();
        let mut prime = vec![0xFF; len];
        (0..middle).for_each(|n| prime[ONES + n] = digit(n));
        // The ones at the end are the 1 that is subtracted.
        let mut carry = x - 1;
        for byte in prime[ONES..ONES + middle].iter_mut().rev() {
            carry += u32::from(*byte);
            *byte = carry as u8;
            carry >>= 8;
        }
        Some(prime)
    }
}

/// One side of an exchange: a secret exponent, and the public value that belongs to it.
pub(crate) struct Exchange {
    group: DhGroup,
    exponent: Zeroizing<[u8; EXPONENT]>,
    params: BoxedMontyParams,
}

impl Exchange {
    /// Draws an exponent; none for the null group.
    pub(crate) fn new(group: DhGroup, random: &mut dyn FnMut(&mut [u8])) -> Option<Exchange> {
        let prime = group.prime()?;
        let mut exponent = Zeroizing::new([0; EXPONENT]);
        random(&mut *exponent);
        // Never 0 or 1.
        exponent[0] |= 0x80;
        let prime = BoxedUint::from_be_slice(&prime, bits(group)).ok()?;
        let params = BoxedMontyParams::new(Odd::new(prime).into_option()?);
        Some(Exchange { group, exponent, params })
    }

    fn power(&self, base: BoxedUint) -> Option<Zeroizing<Vec<u8>>> {
        let exponent = BoxedUint::from_be_slice(&*self.exponent, 8 * EXPONENT as u32).ok()?;
        let result = BoxedMontyForm::new(base, &self.params).pow(&exponent).retrieve();
        Some(Zeroizing::new(result.to_be_bytes().to_vec()))
    }

    /// The public value, as long as the prime.
    pub(crate) fn public(&self) -> Option<Vec<u8>> {
        let mut two = vec![0; self.group.public_len()];
        *two.last_mut()? = 2;
        self.power(BoxedUint::from_be_slice(&two, bits(self.group)).ok()?).map(|value| value.to_vec())
    }

    /// The shared secret with the other side's public value; none if that is not one of the group: of
    /// another length, or outside 2 to p - 2 (RFC 7919, section 5.1).
    pub(crate) fn shared(&self, public: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        if public.len() != self.group.public_len() {
            return None;
        }
        let value = BoxedUint::from_be_slice(public, bits(self.group)).ok()?;
        let two = {
            let mut two = vec![0; public.len()];
            *two.last_mut()? = 2;
            two
        };
        let mut last = self.group.prime()?;
        // p ends in ones: p - 2 without a borrow.
        *last.last_mut()? -= 2;
        if public < &two[..] || public > &last[..] {
            return None;
        }
        self.power(value)
    }
}

fn bits(group: DhGroup) -> u32 {
    8 * group.public_len() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::random;

    /// The ends of the primes as RFC 7919, Appendix A, prints them.
    #[test]
    fn primes_are_those_of_the_standard() {
        let ends = [
            (DhGroup::Ffdhe2048, "886b423861285c97"),
            (DhGroup::Ffdhe3072, "25e41d2b66c62e37"),
            (DhGroup::Ffdhe4096, "c68a007e5e655f6a"),
            (DhGroup::Ffdhe6144, "a40e329cd0e40e65"),
            (DhGroup::Ffdhe8192, "d68c8bb7c5c6424c"),
        ];
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        for (group, end) in ends {
            let prime = group.prime().unwrap();
            assert_eq!(prime.len(), group.public_len());
            assert_eq!(hex(&prime[..16]), "ffffffffffffffffadf85458a2bb4a9a", "{group:?}");
            assert_eq!(hex(&prime[prime.len() - 16..]), format!("{end}ffffffffffffffff"), "{group:?}");
            // Fermat's test: 2^p = 2.
            let p = BoxedUint::from_be_slice(&prime, bits(group)).unwrap();
            let params = BoxedMontyParams::new(Odd::new(p.clone()).into_option().unwrap());
            let mut two = vec![0; prime.len()];
            two[prime.len() - 1] = 2;
            let two = BoxedUint::from_be_slice(&two, bits(group)).unwrap();
            assert_eq!(BoxedMontyForm::new(two.clone(), &params).pow(&p).retrieve(), two, "{group:?}");
        }
        assert_eq!(DhGroup::Null.prime(), None);
    }

    #[test]
    fn both_sides_have_the_same_secret_and_no_other() {
        for group in DhGroup::ALL.into_iter().filter(|group| *group != DhGroup::Null) {
            let [a, b, c] = [1, 2, 3].map(|seed| Exchange::new(group, &mut random(seed)).unwrap());
            let [pa, pb, pc] = [&a, &b, &c].map(|one| one.public().unwrap());
            assert_eq!(a.shared(&pb), b.shared(&pa));
            assert_ne!(a.shared(&pc), a.shared(&pb));
            assert_eq!(a.shared(&pb).unwrap().len(), group.public_len());
        }
        assert!(Exchange::new(DhGroup::Null, &mut random(1)).is_none());
    }

    #[test]
    fn values_that_give_the_secret_away_are_refused() {
        let group = DhGroup::Ffdhe2048;
        let one = Exchange::new(group, &mut random(1)).unwrap();
        let prime = group.prime().unwrap();
        let small = |n: u8| [vec![0; 255], vec![n]].concat();
        let below = |n: u8| [&prime[..255], &[prime[255] - n]].concat();
        for value in
            [small(0), small(1), below(1), prime.clone(), vec![0xFF; 256], vec![2; 255], vec![2; 257], vec![]]
        {
            assert_eq!(one.shared(&value), None, "{value:02x?}");
        }
        assert!(one.shared(&small(2)).is_some() && one.shared(&below(2)).is_some());
    }

    #[test]
    fn codes_and_names_are_read_back() {
        for (n, group) in DhGroup::ALL.into_iter().enumerate() {
            assert_eq!((group.code(), DhGroup::from_code(n as u8)), (n as u8, Some(group)));
        }
        assert_eq!(DhGroup::from_code(6), None);
    }
}
